-- Drop counters whose time is over, unless a call in flight holds an amount, and queued requests of dead processes.
-- Keep the latest processes that have taken steps. A total that has or had a ceiling is not dropped.
local MOST_FIELDS, LATEST = 160, 64
local ENDED_US = 20000000 -- longer than any `fence` looks back
local most, revision, limited = ARGV[FIRST], ARGV[FIRST + 1], '\n' .. ARGV[FIRST + 2] .. '\n'
if is_stale(revision) then
  return stale()
end

local function lasts_for_ever(name, counter)
  local kind, window = parts(name)
  return counter[11] == 0 or string.find(limited, '\n' .. name .. '\n', 1, true)
    or string.find(limited, '\n' .. kind .. '/' .. window .. '//*\n', 1, true)
end

local over = redis.call('ZRANGEBYSCORE', ENDS, '-inf', now, 'LIMIT', 0, most)
for _, name in ipairs(over) do
  local packed = redis.call('HGET', COUNTERS, name)
  local counter = packed and {struct.unpack(COUNTER, packed)} or {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
  if packed and lasts_for_ever(name, counter) then
    counter[11] = 0
    redis.call('HSET', COUNTERS, name, struct.pack(COUNTER, unpack(counter, 1, 12)))
    redis.call('ZREM', ENDS, name)
  elseif counter[4] + counter[5] + counter[6] > 0 then
    redis.call('ZADD', ENDS, now + counter[11], name)
  else
    redis.call('HDEL', COUNTERS, name)
    redis.call('ZREM', ENDS, name)
    strike(name)
    if counter[10] > tonumber(gone or '0') then -- from now on, requests for earlier times are refused
      gone = string.format('%.0f', counter[10])
      redis.call('HSET', META, 'gone', gone)
    end
  end
end
if not closed then
  redis.call('ZREMRANGEBYSCORE', ENDED, '-inf', string.format('%.0f', now_us - ENDED_US))
end
local places = redis.call('HKEYS', WAITERS)
for _, place in ipairs(places) do
  local queued = waiter(place)
  if queued and queued.lease <= now then -- waking the next may have removed other dead ones
    wake(leave(place))
  end
end
if redis.call('HLEN', META) > MOST_FIELDS then
  local fields, processes = redis.call('HGETALL', META), {}
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 3) == 'by ' then
      processes[#processes + 1] = {name = fields[i], last = tonumber(fields[i + 1])}
    end
  end
  table.sort(processes, function(one, other) return one.last > other.last end)
  for i = LATEST + 1, #processes do
    redis.call('HDEL', META, processes[i].name)
  end
  if processes[LATEST + 1] then -- the sequences up to here are no longer checked
    redis.call('HSET', META, 'forgotten', string.format('%.0f', processes[LATEST + 1].last))
  end
end
return answer('DONE', #over)
