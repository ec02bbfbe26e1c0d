"""The stub of the Messages API as a model that says the same whatever it is asked."""

from tests.stubs.messages_api import PLAYS, answer, main

PLAYS[""] = answer

if __name__ == "__main__":
    main()
