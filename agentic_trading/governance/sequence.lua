-- What every script on the state of a tenant begins with, of its ledger and of its claims: how far that has come, and
-- whether it has gone back. KEYS: 1 where that stands.
-- ARGV: 1 epoch, 2 epoch_id, 3 sequence and 4 own sequence that the caller knows (0 and '' for nothing), 5 its name.
-- The own sequence is that of the caller's own last step: others may take as many steps as were lost, not that one.
local META = KEYS[1]
local FIRST = 6 -- in ARGV: what is the script's own
local OWN = 'by ' .. ARGV[5]
local REBUILDING = 'a log that is being booked again'

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_us = time[1] * 1000000 + time[2] -- in which no two steps are taken at the same time

-- Generation 0 is a ledger that has taken no step: nothing of it is on the server.
local epoch, epoch_id, sequence, own, closed, gone, forgotten, zone = unpack(
  redis.call('HMGET', META, 'generation', 'mark', 'sequence', OWN, 'closed', 'gone', 'forgotten', 'zone'))
epoch, epoch_id, sequence, own = tonumber(epoch or 0), epoch_id or '', tonumber(sequence or 0), tonumber(own or 0)

local known, own_known = tonumber(ARGV[1]), tonumber(ARGV[4])
local is_behind = epoch < known
if epoch == known then
  is_behind = epoch_id ~= ARGV[2] or sequence < tonumber(ARGV[3])
    or own < own_known and own_known > tonumber(forgotten or 0)
end

-- Fence the ledger; a rebuild takes over what has ended since, whether the log that it books knows of it or not.
local function close(why, since_us)
  closed = why
  redis.call('HSET', META, 'closed', why)
  redis.call('HSETNX', META, 'since', string.format('%.0f', since_us))
end

if is_behind then
  close('epoch ' .. ARGV[1] .. ', step ' .. ARGV[3], now_us)
end

local function new_epoch_id()
  return ARGV[5] .. '.' .. time[1] .. '.' .. time[2]
end

local function step()
  if epoch == 0 then
    epoch, epoch_id = 1, new_epoch_id()
    redis.call('HSET', META, 'generation', epoch, 'mark', epoch_id)
  end
  sequence = sequence + 1
  own = sequence
  redis.call('HSET', META, 'sequence', sequence, OWN, own)
end

-- The facts of every answer are one text: a client reads that faster than seven values.
local function answer(word, ...)
  local facts = {word, epoch, epoch_id, sequence, own, string.format('%.0f', now), closed or ''}
  return {table.concat(facts, ' '), ...}
end
