-- Return the queued requests, in the order of their places.
local places, found = redis.call('HKEYS', WAITERS), {}
table.sort(places)
for _, place in ipairs(places) do
  local queued = waiter(place)
  if queued.lease > now then
    for _, fact in ipairs({queued.priority or '0', queued.id, queued.since, queued.counter, queued.unit, queued.asked, queued.left}) do
      found[#found + 1] = fact
    end
  end
end
return answer('DONE', found)
