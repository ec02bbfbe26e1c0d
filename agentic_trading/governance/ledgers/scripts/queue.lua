-- The queue. A request in it has a place, `<rank>.<ticket>`. The lowest goes first. The rank is the arrival in ms minus
-- the priority in seconds, so that a request is only overtaken by requests that arrive within their priority after it.
-- LINE has `<counter>\n<place>` for each counter that the request waits for. WAITERS has the request of a place, until
-- when it counts as alive, and the counters that it lacks.
local PLACE = 30 -- its length

local function waiter(place)
  local packed = redis.call('HGET', WAITERS, place)
  return packed and cmsgpack.unpack(packed)
end

-- Remove a request from the queue. Return the counters that it was queued for.
local function leave(place)
  local gone = waiter(place)
  if not gone then
    return {}
  end
  redis.call('HDEL', WAITERS, place)
  for _, name in ipairs(gone.names) do
    redis.call('ZREM', LINE, name .. '\n' .. place)
  end
  return gone.names
end

-- Return the first living place in the queue of a counter, among those before `place`.
local function head(name, place)
  while true do
    local first = redis.call('ZRANGEBYLEX', LINE, '[' .. name .. '\n', '(' .. name .. '\n' .. place, 'LIMIT', 0, 1)[1]
    if not first then
      return nil
    end
    local at = string.sub(first, -PLACE)
    local found = waiter(at)
    if found and found.lease > now then
      return at, found
    end
    leave(at)
    redis.call('ZREM', LINE, first)
  end
end

-- Wake the requests that are now first in the queues of these counters.
local function wake(names)
  if redis.call('HLEN', WAITERS) == 0 then
    return
  end
  local woken, places = {}, {}
  for _, name in ipairs(names) do
    local place = head(name, '\255')
    if place and not woken[place] then
      woken[place] = true
      places[#places + 1] = place
    end
  end
  if #places > 0 then
    redis.call('PUBLISH', LINE, table.concat(places, '\n'))
  end
end

local function wake_all()
  redis.call('PUBLISH', LINE, '*')
end
