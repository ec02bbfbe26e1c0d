// jsonrepair: what JavaScript programs mend JSON with. Answers the requests of reader.py.

import { createInterface } from 'node:readline'
import { jsonrepair } from 'jsonrepair'

function told(text) {
  try {
    return jsonrepair(text)
  } catch {
    return null
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(JSON.parse(line).texts.map(told)) + '\n')
}
