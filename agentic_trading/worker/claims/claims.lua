-- One step of a claim, behind sequence.lua. KEYS: 1 where the tenant's sequence stands, 2 the claim, 3 the owners of the tenant
-- with the end of their leases, 4 the last attempt, 5 the claims that are not finished, with when each was taken.
-- ARGV: the first are those of sequence.lua; then step, owner (its start, a colon, its log and name), lease in ms, the envelope, and
-- what the step takes.
local CLAIM, OWNERS, LAST, OPEN = unpack(KEYS, 2, 5)
local name, owner, lease, id = ARGV[FIRST], ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2]), ARGV[FIRST + 3]
local EPOCH = 1099511627776 -- 2^40: more than the steps of an epoch
local has_gone_back = closed and closed ~= REBUILDING

local function given(number)
  return ARGV[FIRST + 3 + number]
end

local function renew()
  redis.call('ZREMRANGEBYSCORE', OWNERS, '-inf', now)
  redis.call('ZADD', OWNERS, now + lease, owner)
  if redis.call('PTTL', OWNERS) < lease then -- nothing stays of a tenant of which nothing is claimed any more
    redis.call('PEXPIRE', OWNERS, 4 * lease)
  end
end

-- An earlier process with the same name and log has ended: only one process can have a log.
local function end_earlier()
  local own = string.match(owner, ':(.*)$')
  for _, other in ipairs(redis.call('ZRANGE', OWNERS, 0, -1)) do
    if other ~= owner and own ~= '' and string.match(other, ':(.*)$') == own then
      redis.call('ZREM', OWNERS, other)
    end
  end
end

-- A token is larger than each one before it, also of an epoch that the server has forgotten.
local function claim(content, handed_out)
  local known_content, holder, token, count, done = unpack(
    redis.call('HMGET', CLAIM, 'content', 'owner', 'token', 'count', 'done'))
  if known_content and known_content ~= content then
    return answer('OTHER')
  elseif done then
    return answer('FINISHED', redis.call('GET', LAST) or '')
  end
  end_earlier()
  renew()
  if holder == owner and token == handed_out then
    return answer('BUSY')
  elseif holder ~= owner then -- else its answer was lost on the way back
    if holder and redis.call('ZSCORE', OWNERS, holder) then
      return answer('BUSY')
    end
    step()
    token, count = string.format('%.0f', epoch * EPOCH + sequence), tostring(tonumber(count or 0) + 1)
    redis.call('HSET', CLAIM, 'content', content, 'owner', owner, 'token', token, 'count', count)
    redis.call('ZADD', OPEN, now, id)
  end
  return answer('CLAIM', token, count, redis.call('HGETALL', CLAIM))
end

local function is_held(token)
  local holder, current = unpack(redis.call('HMGET', CLAIM, 'owner', 'token'))
  return holder == owner and current == token
end

-- While a log is booked again nothing new begins, and what has begun may end.
local function begins()
  return name == 'claim' or name == 'intend' and given(3) ~= ''
end

if name == 'renew' then
  renew()
  return answer(has_gone_back and 'BACK' or 'DONE')
elseif name == 'end' then
  redis.call('ZREM', OWNERS, owner)
  return answer('DONE')
elseif has_gone_back then
  return answer('BACK')
elseif closed and begins() then
  return answer('CLOSED')
elseif name == 'claim' then
  return claim(given(1), given(2))
elseif not is_held(given(1)) then
  return answer('LOST')
end

step()
if name == 'intend' then
  if given(3) == '' then
    redis.call('HDEL', CLAIM, 'i:' .. given(2))
  else
    redis.call('HSET', CLAIM, 'i:' .. given(2), given(3))
  end
elseif name == 'keep' then
  redis.call('HSET', CLAIM, 'k:' .. given(2), given(3), 'count', '0')
elseif name == 'finish' then
  local content = redis.call('HGET', CLAIM, 'content')
  redis.call('DEL', CLAIM)
  redis.call('HSET', CLAIM, 'content', content, 'done', '1')
  redis.call('PEXPIRE', CLAIM, given(3))
  redis.call('ZREM', OPEN, id)
  if given(2) ~= '' then
    redis.call('SET', LAST, given(2), 'PX', given(4))
  end
elseif name == 'release' then
  redis.call('HDEL', CLAIM, 'owner')
  if tonumber(redis.call('HGET', CLAIM, 'count')) > 0 then
    redis.call('HINCRBY', CLAIM, 'count', -1)
  end
end
return answer('DONE')
