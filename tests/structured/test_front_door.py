"""The front door of the package is what others may rely on."""

from agentic_trading import structured


def test_the_front_door_offers_these_names() -> None:
    assert structured.__all__ == [
        "Accepted",
        "AskAgain",
        "GiveUp",
        "InstructorParser",
        "NextStep",
        "OutputParser",
        "ParserException",
        "Prepared",
        "RaiseCap",
        "Rejected",
        "SchemaLike",
        "SemanticCheck",
        "StructuredLogProbsParser",
        "next_step",
        "prepare",
        "read",
        "read_json",
        "schema_of",
        "schema_problem",
        "select",
        "validate",
    ]
