-- The common part of the limiter's scripts: read one deployment, advance it to the present, change it, write it back.
-- limiters/deployment.py has the same arithmetic. Tests compare both.
--
-- KEYS     lane: levels, breaker, counts · inside: id by end of lease · permits: what was taken, by id
--          line: ticket:id by rank · places: member, tokens and end of place, by id
-- ARGV[1]  the deployment's rules as JSON, without unlimited ones. ARGV[2]: the id of the request.
-- The server's TIME is the only clock, in whole milliseconds. Levels have 60,000 units per call or token, so that all
-- numbers are whole.

local LANE, INSIDE, PERMITS, LINE, PLACES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local MINUTE_MS = 60000
local rules = cjson.decode(ARGV[1])
local id = ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local NUMBERS = {
  'requests', 'requests_at', 'tokens', 'tokens_at', 'era', 'open_until', 'probes', 'paused_until', 'tickets'
}
local COUNTS = { 'ended', 'traffic' }
local deployment = {}

local function whole(number)
  return string.format('%.0f', number)
end

-- Buckets ----------------------------------------------------------------------------------------------------

local function fill(name, per_minute)
  if not per_minute then return end
  local full, at = per_minute * MINUTE_MS, deployment[name .. '_at']
  local level = deployment[name] or full
  if at and now > at then level = level + per_minute * (now - at) end
  deployment[name], deployment[name .. '_at'] = math.min(full, level), now
end

local function take(name, per_minute, amount)
  if per_minute then
    deployment[name] = math.min(per_minute * MINUTE_MS, deployment[name] - amount * MINUTE_MS)
  end
end

local function bucket_wait(name, per_minute, amount, ahead)
  if not per_minute then return 0 end
  local short = math.min(amount, per_minute) * MINUTE_MS + ahead * MINUTE_MS - deployment[name]
  return short > 0 and math.ceil(short / per_minute) or 0
end

-- Sliding counts: lists of {slot, first, second} ------------------------------------------------------------

local function recent(counts, slot_ms, slots)
  local slot, kept = math.floor(now / slot_ms), {}
  for _, count in ipairs(counts) do
    if count[1] >= slot - slots and count[1] <= slot then kept[#kept + 1] = count end
  end
  return kept
end

local function sums(counts)
  local first, second = 0, 0
  for _, count in ipairs(counts) do
    first, second = first + count[2], second + count[3]
  end
  return first, second
end

local function count(counts, slot_ms, first, second)
  local slot, last = math.floor(now / slot_ms), counts[#counts]
  if not last or last[1] ~= slot then
    last = { slot, 0, 0 }
    counts[#counts + 1] = last
  end
  last[2], last[3] = last[2] + first, last[3] + second
end

local function take_back(counts, slot_ms, at, first, second)
  local slot = math.floor(at / slot_ms)
  for _, kept in ipairs(counts) do
    if kept[1] == slot then kept[2], kept[3] = kept[2] - first, kept[3] - second end
  end
end

local function retries_left()
  local calls, retries = sums(deployment.traffic)
  return math.max(0, math.max(rules.retry_least, math.floor(rules.retry_share * calls + 1e-9)) - retries)
end

-- The breaker: an era ends when it opens and when it closes ---------------------------------------------------

local function change(is_open)
  deployment.era, deployment.probes, deployment.ended = deployment.era + 1, 0, {}
  deployment.open_until = is_open and now + rules.wait_open_ms or 0
end

local function breaker_leave(era, outcome)
  if era ~= deployment.era then return end
  local is_probe = deployment.open_until > 0
  if is_probe then deployment.probes = deployment.probes - 1 end
  if outcome ~= 'answered' and outcome ~= 'failed' then return end
  local failed = outcome == 'failed'
  if is_probe then
    change(failed)
    return
  end
  count(deployment.ended, rules.ended_slot_ms, failed and 0 or 1, failed and 1 or 0)
  local answered, failures = sums(deployment.ended)
  local ended = answered + failures
  if ended >= rules.min_calls and failures >= rules.failure_rate * ended then change(true) end
end

-- Calls in flight, and the queue ------------------------------------------------------------------------------

local function drop_permit(permit_id)
  local permit = redis.call('HGET', PERMITS, permit_id)
  redis.call('HDEL', PERMITS, permit_id)
  redis.call('ZREM', INSIDE, permit_id)
  return permit and cjson.decode(permit)
end

local function leave(outcome, tokens, cooldown_ms)
  local permit = drop_permit(id)
  if not permit then return end
  breaker_leave(permit.era, outcome)
  if outcome == 'unused' then
    tokens = 0
    take_back(deployment.traffic, rules.retry_slot_ms, permit.at, 1, permit.retry)
    take('requests', rules.requests, -1)
  end
  if tokens >= 0 then take('tokens', rules.tokens, tokens - permit.tokens) end
  if cooldown_ms > 0 then deployment.paused_until = math.max(deployment.paused_until, now + cooldown_ms) end
end

local function place_of(entry_id)
  local place = redis.call('HGET', PLACES, entry_id)
  return place and cjson.decode(place)
end

local function drop_place(entry_id)
  local place = place_of(entry_id)
  if place then
    redis.call('HDEL', PLACES, entry_id)
    redis.call('ZREM', LINE, place.member)
  end
end

-- To the present, and back ------------------------------------------------------------------------------------

local function read()
  local fields = {}
  for _, name in ipairs(NUMBERS) do fields[#fields + 1] = name end
  for _, name in ipairs(COUNTS) do fields[#fields + 1] = name end
  local values = redis.call('HMGET', LANE, unpack(fields))
  for i, name in ipairs(NUMBERS) do deployment[name] = tonumber(values[i]) end
  for i, name in ipairs(COUNTS) do deployment[name] = cjson.decode(values[#NUMBERS + i] or '[]') end
  for _, name in ipairs({ 'era', 'open_until', 'probes', 'paused_until', 'tickets' }) do
    deployment[name] = deployment[name] or 0
  end
end

local function come_to_now()
  read()
  fill('requests', rules.requests)
  fill('tokens', rules.tokens)
  deployment.traffic = recent(deployment.traffic, rules.retry_slot_ms, rules.retry_slots)
  deployment.ended = recent(deployment.ended, rules.ended_slot_ms, rules.ended_slots)
  deployment.open_until = math.min(deployment.open_until, now + rules.wait_open_ms)
  deployment.paused_until = math.min(deployment.paused_until, now + rules.longest_cooldown_ms)
  for _, over in ipairs(redis.call('ZRANGEBYSCORE', INSIDE, '-inf', now)) do
    local permit = drop_permit(over)
    if permit then breaker_leave(permit.era, 'neutral') end
  end
end

local function write()
  local values = {}
  for _, name in ipairs(NUMBERS) do
    if deployment[name] then
      values[#values + 1] = name
      values[#values + 1] = whole(deployment[name])
    end
  end
  for _, name in ipairs(COUNTS) do
    values[#values + 1] = name
    values[#values + 1] = cjson.encode(deployment[name])
  end
  redis.call('HSET', LANE, unpack(values))
  redis.call('PEXPIRE', LANE, rules.keep_ms)
end

come_to_now()
