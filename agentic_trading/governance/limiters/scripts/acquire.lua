-- Let an attempt in, keep it waiting or deny it.
-- ARGV[3..6]: tokens, priority, lease in ms, 1 for a retry.
-- Returns {'permit', tokens} · {'wait', reason, ms} · {'shut', reason, ms}.

local wanted, priority, lease_ms, is_retry = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local function keep(...)
  for _, key in ipairs({ ... }) do redis.call('PEXPIRE', key, rules.keep_ms) end
end

local function shut()
  if deployment.open_until > now then return 'circuit_open', deployment.open_until - now end
  if deployment.open_until > 0 and deployment.probes >= rules.half_open_calls then
    return 'circuit_open', math.min(rules.probe_look_ms, rules.wait_open_ms)
  end
  if is_retry == 1 and retries_left() == 0 then
    local slot = math.floor(now / rules.retry_slot_ms)
    for _, kept in ipairs(deployment.traffic) do
      if kept[3] > 0 then
        slot = kept[1]
        break
      end
    end
    return 'retry_budget', math.max(1, (slot + rules.retry_slots + 1) * rules.retry_slot_ms - now)
  end
end

-- Return the tokens that these members of the queue need, and the number of dead ones, which are dropped.
local function first_in_line(members)
  local ids, tokens, dead = {}, 0, 0
  for i, member in ipairs(members) do ids[i] = string.sub(member, string.find(member, ':', 1, true) + 1) end
  local places = redis.call('HMGET', PLACES, unpack(ids))
  for i, member in ipairs(members) do
    local place = places[i] and cjson.decode(places[i])
    if place and place['until'] > now then
      tokens = tokens + place.tokens
    else
      redis.call('HDEL', PLACES, ids[i])
      redis.call('ZREM', LINE, member)
      dead = dead + 1
    end
  end
  return tokens, dead
end

-- Arrival in ms minus priority in seconds. A request is only overtaken by requests within their priority after it.
local function rank_of(place)
  return (place and place.came or now) - 1000 * priority
end

-- Return the number of requests with a better place, and the tokens that the first of them need. Dead ones are dropped,
-- unless only `how_many` is needed: a request that has to wait anyway need not read the whole queue each time.
local function ahead_of(place, how_many)
  if redis.call('EXISTS', LINE) == 0 then return 0, 0 end
  local rank = rank_of(place)
  if place then redis.call('ZADD', LINE, rank, place.member) end
  while true do
    local ahead = place and redis.call('ZRANK', LINE, place.member) or redis.call('ZCOUNT', LINE, '-inf', rank)
    if ahead == 0 or how_many then return ahead, 0 end
    local members = redis.call('ZRANGE', LINE, 0, math.min(ahead, rules.looked_at) - 1)
    local tokens, dead = first_in_line(members)
    if dead == 0 then return ahead, tokens end
  end
end

-- Return the longest wait of all limits, with `ahead` requests in front.
local function short(ahead, tokens_ahead)
  local wait, reason = 0, 'concurrent'
  if rules.concurrent and redis.call('ZCARD', INSIDE) + ahead >= rules.concurrent then
    wait = rules.slot_look_ms + rules.slot_look_more_ms * ahead
  end
  local requests = bucket_wait('requests', rules.requests, 1, ahead)
  if requests > wait then wait, reason = requests, 'requests' end
  local tokens = bucket_wait('tokens', rules.tokens, wanted, tokens_ahead)
  if tokens > wait then wait, reason = tokens, 'tokens' end
  return wait, reason
end

local function missing(place)
  if now < deployment.paused_until then return 'cooldown', deployment.paused_until - now end
  local alone, reason = short(0, 0)
  local ahead, tokens_ahead = ahead_of(place, alone > 0 and not rules.tokens)
  local wait = alone
  if ahead > 0 and (rules.requests or rules.tokens or rules.concurrent) then
    wait = short(ahead, tokens_ahead)
    if ahead > rules.looked_at then
      wait = math.max(wait, rules.slot_look_ms + rules.slot_look_more_ms * ahead)
    end
  end
  if wait > 0 then return alone > 0 and reason or 'queue', math.min(wait, rules.look_again_ms) end
end

local function keep_place(place, wait)
  if not place then
    place = { came = now, member = string.format('%016.0f:', deployment.tickets) .. id }
    deployment.tickets = deployment.tickets + 1
  end
  place.tokens, place['until'] = math.min(wanted, rules.tokens or 0), now + wait + rules.place_ms
  redis.call('ZADD', LINE, rank_of(place), place.member)
  redis.call('HSET', PLACES, id, cjson.encode(place))
  keep(LINE, PLACES)
end

local function let_in()
  take('requests', rules.requests, 1)
  take('tokens', rules.tokens, wanted)
  count(deployment.traffic, rules.retry_slot_ms, 1, is_retry)
  if deployment.open_until > 0 then deployment.probes = deployment.probes + 1 end
  redis.call('ZADD', INSIDE, now + lease_ms, id)
  redis.call('HSET', PERMITS, id, cjson.encode({ tokens = wanted, at = now, retry = is_retry, era = deployment.era }))
  keep(INSIDE, PERMITS)
end

local function enter()
  local known = redis.call('HGET', PERMITS, id)
  if known then
    redis.call('ZADD', INSIDE, now + lease_ms, id)
    keep(INSIDE, PERMITS)
    return { 'permit', cjson.decode(known).tokens }
  end
  local reason, ms = shut()
  if reason then
    drop_place(id)
    return { 'shut', reason, ms }
  end
  local place = place_of(id)
  if place and place['until'] <= now then
    drop_place(id)
    place = nil
  end
  reason, ms = missing(place)
  if reason then
    keep_place(place, ms)
    return { 'wait', reason, ms }
  end
  drop_place(id)
  let_in()
  return { 'permit', wanted }
end

local answer = enter()
write()
return answer
