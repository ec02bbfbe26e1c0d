-- The start of every script on a tenant's state (ledger and claims): its checkpoint, and whether it has gone back.
-- KEYS: 1 the hash of the checkpoint.
-- ARGV: 1 epoch, 2 epoch_id, 3 sequence and 4 own sequence known to the caller (0 and '' if unknown), 5 its name.
-- The own sequence is the caller's own last step. Others may repeat the number of lost steps, but not that step.
local META = KEYS[1]
local FIRST = 6 -- in ARGV: the script's own arguments
local OWN = 'by ' .. ARGV[5]
local REBUILDING = 'a log that is being booked again'

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_us = time[1] * 1000000 + time[2] -- so fine that two steps never have the same time

-- Generation 0 is a ledger without a step. The server has no data of it.
local epoch, epoch_id, sequence, own, closed, gone, forgotten, zone = unpack(
  redis.call('HMGET', META, 'generation', 'mark', 'sequence', OWN, 'closed', 'gone', 'forgotten', 'zone'))
epoch, epoch_id, sequence, own = tonumber(epoch or 0), epoch_id or '', tonumber(sequence or 0), tonumber(own or 0)

local known, own_known = tonumber(ARGV[1]), tonumber(ARGV[4])
local is_behind = epoch < known
if epoch == known then
  is_behind = epoch_id ~= ARGV[2] or sequence < tonumber(ARGV[3])
    or own < own_known and own_known > tonumber(forgotten or 0)
end

-- Close the ledger. A rebuild keeps the calls that end from now on, even if the log lacks them.
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

-- The facts of an answer are one text, because clients parse it faster than seven values.
local function answer(word, ...)
  local facts = {word, epoch, epoch_id, sequence, own, string.format('%.0f', now), closed or ''}
  return {table.concat(facts, ' '), ...}
end
