-- Finish messages of partitions for a group, and drop what every group has finished.
-- KEYS: 1 owner by partition, 2 token by partition, then the streams.
-- ARGV: 1 reader, 2 group; then by stream: partition, token, how many are finished, each of them.
local OWNERS, TOKENS, STREAMS = KEYS[1], KEYS[2], 2
local reader, group, PAGE = ARGV[1], ARGV[2], 1000

local function number_of(id)
  return tonumber(string.match(id, '-(%d+)$'))
end

-- The first message that a group has not finished, or may be handed.
local function first_needed(stream)
  local first
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for i = 1, #each, 2 do
      facts[each[i]] = each[i + 1]
    end
    local needed = number_of(facts['last-delivered-id']) + 1
    if facts['pending'] > 0 then
      needed = number_of(redis.call('XPENDING', stream, facts['name'])[2])
    end
    first = math.min(first or needed, needed)
  end
  return first
end

local answer, i, stream = {}, 3, STREAMS
while i < #ARGV do
  local partition, token, count = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  stream = stream + 1
  if redis.call('HGET', OWNERS, partition) ~= reader or redis.call('HGET', TOKENS, partition) ~= token then
    table.insert(answer, 'lost')
  else
    for from = i + 3, i + 2 + count, PAGE do
      redis.call('XACK', KEYS[stream], group, unpack(ARGV, from, math.min(from + PAGE - 1, i + 2 + count)))
    end
    local first = first_needed(KEYS[stream])
    if first then -- else the group was destroyed, and there is no other one
      redis.call('XTRIM', KEYS[stream], 'MINID', '0-' .. string.format('%.0f', first))
    end
    table.insert(answer, 'done')
  end
  i = i + 3 + count
end
return answer
