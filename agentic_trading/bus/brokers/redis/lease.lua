-- Be heard as a reader of a group, give partitions back, and take free ones up to a fair share.
-- KEYS: 1 the topic's settings, 2 readers with the end of their leases, 3 owner by partition, 4 token by partition,
-- then the stream of each partition.
-- ARGV: 1 reader, 2 lease in ms (0: the reader leaves), 3 how many partitions it takes the topic to have, 4 group;
-- then by partition that is given back: its number, its token.
local META, READERS, OWNERS, TOKENS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local STREAMS, reader, lease, group = 4, ARGV[1], tonumber(ARGV[2]), ARGV[4]
local partitions = redis.call('HGET', META, 'partitions')
if lease > 0 and not partitions then
  return {'missing'}
elseif lease > 0 and partitions ~= ARGV[3] then
  return {'partitions', partitions}
end
partitions = tonumber(ARGV[3])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

local function owner_of(partition)
  return redis.call('HGET', OWNERS, partition)
end

for i = 5, #ARGV, 2 do
  if owner_of(ARGV[i]) == reader and redis.call('HGET', TOKENS, ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', OWNERS, ARGV[i])
  end
end
redis.call('ZREMRANGEBYSCORE', READERS, '-inf', now)

if lease == 0 then
  redis.call('ZREM', READERS, reader)
  for partition = 0, partitions - 1 do
    if owner_of(partition) == reader then
      redis.call('HDEL', OWNERS, partition)
    end
  end
  return {'done'}
end
redis.call('ZADD', READERS, now + lease, reader)

-- A token is never given twice, not even by a server that was emptied meanwhile: it grows with the time.
local function take(partition)
  local before = tonumber(redis.call('HGET', TOKENS, partition) or 0)
  redis.call('HSET', TOKENS, partition, string.format('%.0f', math.max(before + 1, now_us)))
  redis.call('HSET', OWNERS, partition, reader)
  redis.pcall('XGROUP', 'CREATE', KEYS[STREAMS + 1 + partition], group, '0', 'MKSTREAM')  -- or it is there
end

-- How far the newest message is: what was delivered to the group, and what was not yet.
local function end_of(stream)
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for i = 1, #each, 2 do
      facts[each[i]] = each[i + 1]
    end
    if facts['name'] == group then
      return string.match(facts['last-delivered-id'], '-(%d+)$') + (tonumber(facts['lag'] or 0) or 0)
    end
  end
  return 0
end

local mine, free = {}, {}
for partition = 0, partitions - 1 do
  local owner = owner_of(partition)
  if owner == reader then
    table.insert(mine, partition)
  elseif not owner or not redis.call('ZSCORE', READERS, owner) then
    table.insert(free, partition)
  end
end
local fair = math.ceil(partitions / redis.call('ZCARD', READERS))
for _, partition in ipairs(free) do
  if #mine >= fair then
    break
  end
  take(partition)
  table.insert(mine, partition)
end

local answer = {'done', tostring(fair)}
for _, partition in ipairs(mine) do
  table.insert(answer, tostring(partition))
  table.insert(answer, redis.call('HGET', TOKENS, partition))
  table.insert(answer, string.format('%.0f', end_of(KEYS[STREAMS + 1 + partition])))
end
return answer
