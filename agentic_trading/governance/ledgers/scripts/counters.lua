-- Counters: nine numbers of a scope and window, and three times, as doubles: whole up to 2^53.
-- 1-3 spent, 4-6 held, 7-9 in doubt, each in nano-dollars, tokens, calls; 10 when its window ends (0: it has none),
-- 11 for how long it is kept after that and after its last use (0: for ever), 12 when it may be forgotten. All in ms.
local COUNTER = '<dddddddddddd'

local function read(names)
  return names[1] and redis.call('HMGET', COUNTERS, unpack(names)) or {}
end

local function forget_later(name, counter)
  if counter[11] > 0 then
    local least = math.max(counter[10], now) + counter[11]
    if least > counter[12] then -- an eighth more, so that this is seldom written
      counter[12] = least + math.floor(counter[11] / 8)
      redis.call('ZADD', ENDS, counter[12], name)
    end
  end
end

-- Add to the counters of a call; one that was forgotten meanwhile is not made again.
local function add(names, spent, held, doubt)
  local changes = {spent[1], spent[2], spent[3], held[1], held[2], held[3], doubt[1], doubt[2], doubt[3]}
  local packed, fields = read(names), {}
  for i, name in ipairs(names) do
    if packed[i] then
      local counter = {struct.unpack(COUNTER, packed[i])}
      for n = 1, 9 do
        counter[n] = counter[n] + changes[n]
      end
      forget_later(name, counter)
      fields[#fields + 1] = name
      fields[#fields + 1] = struct.pack(COUNTER, unpack(counter, 1, 12))
    end
  end
  if #fields > 0 then
    redis.call('HSET', COUNTERS, unpack(fields))
  end
end

-- Counters of what lasts are in INDEX, so that those of a kind and window are found; META knows the newest window.
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

-- Take a counter that was dropped out of the index, unless its scope has one of the newest window.
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
