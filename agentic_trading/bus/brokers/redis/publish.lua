-- Add messages to a topic, all of them or none. KEYS: 1 the topic's settings, then the streams that get something.
-- ARGV: 1 how many partitions the client takes the topic to have, 2 the most that a partition may keep,
-- 3 for how many seconds a stream of replies stays (0: the streams are partitions),
-- 4 about how many replies it keeps, or how many of its newest messages a partition does (0: all, up to the most);
-- then by message: the number of its stream, key, headers, value. Returns how many old messages of partitions went.
local FIRST = 5
local partitions = redis.call('HGET', KEYS[1], 'partitions')
if not partitions then
  return {'missing'}
elseif partitions ~= ARGV[1] then
  return {'partitions', partitions}
end
local most, stays, newest = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if stays == 0 and newest == 0 then
  local adds = {}
  for i = FIRST, #ARGV, 4 do
    local stream = tonumber(ARGV[i])
    adds[stream] = (adds[stream] or 0) + 1
  end
  for stream, count in pairs(adds) do
    local size = redis.call('XLEN', KEYS[1 + stream])
    if size + count > most then
      return {'full', tostring(stream), tostring(size)}
    end
  end
end

for i = FIRST, #ARGV, 4 do
  local stream = KEYS[1 + tonumber(ARGV[i])]
  if stays == 0 then
    redis.call('XADD', stream, '0-*', 'key', ARGV[i + 1], 'headers', ARGV[i + 2], 'value', ARGV[i + 3])
  else
    redis.call('XADD', stream, 'MAXLEN', '~', ARGV[4], '*',
      'key', ARGV[i + 1], 'headers', ARGV[i + 2], 'value', ARGV[i + 3])
    redis.call('EXPIRE', stream, stays)
  end
end

local gone = 0
if stays == 0 and newest > 0 then
  for stream = 2, #KEYS do
    gone = gone + redis.call('XTRIM', KEYS[stream], 'MAXLEN', newest)
  end
end
return {'done', tostring(gone)}
