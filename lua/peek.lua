-- Tells what take.lua would find, and writes nothing.
--
-- KEYS   the buckets' keys, each once.
-- ARGV   as for take.lua: [1] the time in microseconds or ''; then for each key max_tokens, refill_rate, cost, time
--        to live (not used).
-- Reply  one string: '1' when every cost is covered or '0' when not, then for each key ' tokens elapsed' as in
--        take.lua's denial.
-- Clock  as for take.lua: read once; a clock before last_refill adds nothing.
--
-- Same operations in the same order as bucket::peek: change both or neither.
local KEYS, ARGV, call, tonumber, format, floor = KEYS, ARGV, redis.call, tonumber, string.format, math.floor
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local covered, levels = '1', ''
for i = 1, #KEYS do
  local stored = call('HMGET', KEYS[i], 'tokens', 'last_refill')
  local found, last, elapsed = tonumber(stored[1]), tonumber(stored[2]), 0
  local max = tonumber(ARGV[4 * i - 2])
  if not (found and last and found - found == 0 and last - last == 0) then
    found = max
  else
    elapsed = now - floor(last * 1000000 + 0.5)
  end
  local tokens = found
  if elapsed > 0 then
    tokens = tokens + elapsed * ARGV[4 * i - 1] / 1000000
  end
  if tokens > max then
    tokens = max
  end
  if not (tokens >= tonumber(ARGV[4 * i])) then
    covered = '0'
  end
  levels = levels .. format(' %.17g %.0f', found, elapsed)
end
return covered .. levels
