-- Return the queued requests, in the order of their places.
local places, found = redis.call('HKEYS', WAITERS), {}
table.sort(places)
for _, place in ipairs(places) do
  local who = waiter(place)
  if who.lease > now then
    for _, fact in ipairs({place, who.id, who.since, who.counter, who.unit, who.asked, who.left}) do
      found[#found + 1] = fact
    end
  end
end
return answer('DONE', found)
