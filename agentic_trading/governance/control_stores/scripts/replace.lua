-- Replace the version before a document by it.
-- KEYS[1]: the tenant's hash · ARGV: the new version, its document · returns 1 if replaced, 0 if not, -1 for a foreign hash
local version = redis.call('HGET', KEYS[1], 'version')
if not version and redis.call('EXISTS', KEYS[1]) == 1 then
  return -1
end
if tonumber(version or '0') ~= tonumber(ARGV[1]) - 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'document', ARGV[2])
return 1
