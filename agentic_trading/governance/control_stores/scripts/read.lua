-- Return worker, status, worker, status, … of the workers that have published recently.
-- KEYS[1]: statuses, by worker · KEYS[2]: when, by worker · ARGV: how recently (ms)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local workers = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', now - ARGV[1]), '+inf')
local found = {}
for _, worker in ipairs(workers) do
  local status = redis.call('HGET', KEYS[1], worker)
  if status then
    found[#found + 1] = worker
    found[#found + 1] = status
  end
end
return found
