"""LiteLLM: how it reads the arguments of a tool call."""

import logging

from litellm.litellm_core_utils.prompt_templates.common_utils import parse_tool_call_arguments

from benchmarks.peers.reader import answer_readings

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    answer_readings({"arguments": lambda _schema: parse_tool_call_arguments})
