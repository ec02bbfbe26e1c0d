"""fast-json-repair: json-repair's interface, written in Rust."""

import fast_json_repair

from benchmarks.peers.reader import answer_readings

if __name__ == "__main__":
    answer_readings({"repair": lambda _schema: fast_json_repair.loads})
