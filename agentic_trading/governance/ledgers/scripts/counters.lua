-- A counter of a scope and window: nine amounts and three times, as doubles, which are exact up to 2^53.
-- 1-3 spent, 4-6 held, 7-9 in doubt, each in nano-dollars, tokens, calls; 10 the end of its window (0: endless),
-- 11 how long it is kept after that and after its last use (0: forever), 12 when it may be dropped. Times are in ms.
local COUNTER = '<dddddddddddd'

local function read(names)
  return names[1] and redis.call('HMGET', COUNTERS, unpack(names)) or {}
end

-- Return when a counter that is used now may be dropped.
local function forget_later(name, ends, keep, over)
  local least = math.max(ends, now) + keep
  if keep == 0 or least <= over then
    return over
  end
  over = least + math.floor(keep / 8) -- an eighth more, so that this write is rare
  redis.call('ZADD', ENDS, over, name)
  return over
end

-- Add to the counters of a call. A counter that was dropped is not created again.
local function add(names, spent, held, doubt)
  local spent1, spent2, spent3, held1, held2, held3 = spent[1], spent[2], spent[3], held[1], held[2], held[3]
  local doubt1, doubt2, doubt3 = doubt[1], doubt[2], doubt[3]
  local packed, fields = read(names), {}
  for i, name in ipairs(names) do
    if packed[i] then -- no table, because these lines dominate the time of a step
      local s1, s2, s3, h1, h2, h3, d1, d2, d3, ends, keep, over = struct.unpack(COUNTER, packed[i])
      fields[#fields + 1] = name
      fields[#fields + 1] = struct.pack(COUNTER, s1 + spent1, s2 + spent2, s3 + spent3, h1 + held1, h2 + held2,
        h3 + held3, d1 + doubt1, d2 + doubt2, d3 + doubt3, ends, keep, forget_later(name, ends, keep, over))
    end
  end
  if #fields > 0 then
    redis.call('HSET', COUNTERS, unpack(fields))
  end
end

-- Counters of lasting scopes are in INDEX, so that those of a kind and window can be found. META has the newest window.
local function parts(name)
  return string.match(name, '^(%a+)/(%a+)/([^/]*)/(.*)$')
end

local function lasts(name)
  local kind = string.match(name, '^%a+')
  return kind ~= 'call' and kind ~= 'trace'
end

local function newest(window)
  local known = redis.call('HGET', META, 'newest ' .. window)
  if known then
    local ends, window_id = string.match(known, '^(%d+) (.*)$')
    return tonumber(ends), window_id
  end
  return 0, ''
end

local function enter(name, ends)
  if lasts(name) then
    local kind, window, window_id, id = parts(name)
    redis.call('ZADD', INDEX, 0, kind .. '/' .. window .. '/' .. id)
    if ends > newest(window) then
      redis.call('HSET', META, 'newest ' .. window, string.format('%.0f', ends) .. ' ' .. window_id)
    end
  end
end

-- Remove a dropped counter from the index, unless its scope has one in the newest window.
local function strike(name)
  if lasts(name) then
    local kind, window, _, id = parts(name)
    local _, window_id = newest(window)
    if redis.call('HEXISTS', COUNTERS, kind .. '/' .. window .. '/' .. window_id .. '/' .. id) == 0 then
      redis.call('ZREM', INDEX, kind .. '/' .. window .. '/' .. id)
    end
  end
end

local function split(text)
  local names = {}
  for name in string.gmatch(text, '[^\n]+') do
    names[#names + 1] = name
  end
  return names
end
