"""json-repair: whatever text, an object; `strict` refuses some."""

import json_repair

from benchmarks.peers.reader import answer_readings

if __name__ == "__main__":
    answer_readings({
        "repair": lambda _schema: json_repair.loads,
        "strict": lambda _schema: lambda text: json_repair.loads(text, strict=True),
    })
