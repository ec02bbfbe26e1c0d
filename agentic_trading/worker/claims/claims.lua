-- One step of a claim. KEYS: 1 the claim, 2 the owners of the tenant with the end of their leases, 3 the last attempt.
-- ARGV: 1 step, 2 owner (its start, a colon, its name), 3 lease in ms; then what the step takes.
local CLAIM, OWNERS, LAST = KEYS[1], KEYS[2], KEYS[3]
local step, owner, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function renew()
  redis.call('ZREMRANGEBYSCORE', OWNERS, '-inf', now)
  redis.call('ZADD', OWNERS, now + lease, owner)
end

-- An earlier process of the same name has ended: it had its log, which only one process can have.
local function end_namesakes()
  local name = string.match(owner, ':(.*)$')
  for _, other in ipairs(redis.call('ZRANGE', OWNERS, 0, -1)) do
    if other ~= owner and name ~= '' and string.match(other, ':(.*)$') == name then
      redis.call('ZREM', OWNERS, other)
    end
  end
end

local function claim(content, handed_out)
  local known, holder, token, count, done = unpack(
    redis.call('HMGET', CLAIM, 'content', 'owner', 'token', 'count', 'done'))
  if known and known ~= content then
    return {'other'}
  elseif done then
    return {'finished', redis.call('GET', LAST) or ''}
  end
  end_namesakes()
  renew()
  if holder == owner and token == handed_out then
    return {'busy'}
  elseif holder ~= owner then -- else its answer was lost on the way back
    if holder and redis.call('ZSCORE', OWNERS, holder) then
      return {'busy'}
    end
    token, count = tostring(tonumber(token or 0) + 1), tostring(tonumber(count or 0) + 1)
    redis.call('HSET', CLAIM, 'content', content, 'owner', owner, 'token', token, 'count', count)
  end
  return {'claim', token, count, redis.call('HGETALL', CLAIM)}
end

local function is_held(token)
  local holder, current = unpack(redis.call('HMGET', CLAIM, 'owner', 'token'))
  return holder == owner and current == token
end

if step == 'renew' then
  renew()
  return {'done'}
elseif step == 'end' then
  redis.call('ZREM', OWNERS, owner)
  return {'done'}
elseif step == 'claim' then
  return claim(ARGV[4], ARGV[5])
elseif not is_held(ARGV[4]) then
  return {'lost'}
elseif step == 'intend' then
  if ARGV[6] == '' then
    redis.call('HDEL', CLAIM, 'i:' .. ARGV[5])
  else
    redis.call('HSET', CLAIM, 'i:' .. ARGV[5], ARGV[6])
  end
elseif step == 'keep' then
  redis.call('HSET', CLAIM, 'k:' .. ARGV[5], ARGV[6], 'count', '0')
elseif step == 'finish' then
  local content = redis.call('HGET', CLAIM, 'content')
  redis.call('DEL', CLAIM)
  redis.call('HSET', CLAIM, 'content', content, 'done', '1')
  redis.call('PEXPIRE', CLAIM, ARGV[6])
  if ARGV[5] ~= '' then
    redis.call('SET', LAST, ARGV[5], 'PX', ARGV[7])
  end
elseif step == 'release' then
  redis.call('HDEL', CLAIM, 'owner')
  if tonumber(redis.call('HGET', CLAIM, 'count')) > 0 then
    redis.call('HINCRBY', CLAIM, 'count', -1)
  end
end
return {'done'}
