-- Read partitions for a group: what it was handed and has not finished, else what is new to it.
-- KEYS: 1 owner by partition, 2 token by partition, then the streams that are read.
-- ARGV: 1 reader, 2 group, 3 the most messages of all of them; then by stream: partition, token, the last one that was read.
-- A reader that is not the owner any more is refused: what it read would be taken from the next one.
local OWNERS, TOKENS, STREAMS = KEYS[1], KEYS[2], 2
local reader, group, left = ARGV[1], ARGV[2], tonumber(ARGV[3])

local function entries(stream, after)
  local found = redis.call('XREADGROUP', 'GROUP', group, 'reader', 'COUNT', left, 'STREAMS', stream, after)
  return found and found[1][2] or {}
end

local function last_delivered(stream)
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for i = 1, #each, 2 do
      facts[each[i]] = each[i + 1]
    end
    if facts['name'] == group then
      return facts['last-delivered-id']
    end
  end
  return '0-0'
end

local answer = {}
for i = 4, #ARGV, 3 do
  local partition, stream = ARGV[i], KEYS[STREAMS + (i - 1) / 3]
  if redis.call('HGET', OWNERS, partition) ~= reader or redis.call('HGET', TOKENS, partition) ~= ARGV[i + 1] then
    table.insert(answer, {'lost'})
  elseif left == 0 then
    table.insert(answer, {'later'})
  else
    local found = entries(stream, ARGV[i + 2])
    if #found == 0 then
      found = entries(stream, '>')
    end
    left = left - #found
    if #found == 0 then
      table.insert(answer, {'all', last_delivered(stream)})
    else
      table.insert(answer, {'read', found})
    end
  end
end
return answer
