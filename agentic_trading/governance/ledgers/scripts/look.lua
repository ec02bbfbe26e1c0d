-- Return the checkpoint, the limits, the state of a call if one is given, and the newest counted windows (end and id of
-- minute, hour, day and month). A process may pass its zone, which must be the ledger's.
if zone and ARGV[FIRST] and zone ~= ARGV[FIRST] then
  return answer('ZONE', zone)
end
local state = ''
if KEYS[FIRST_CALL] then
  local call = redis.call('HMGET', KEYS[FIRST_CALL], 'mark', 'state')
  state = call[1] == epoch_id and call[2] or ''
end
local limits = redis.call('HMGET', LIMITS, 'revision', 'version', 'limits', 'counted')
return answer('DONE', state, limits[1] or '0', limits[2] or '0', limits[3] or '', limits[4] or '',
  redis.call('HMGET', META, 'newest minute', 'newest hour', 'newest day', 'newest month'))
