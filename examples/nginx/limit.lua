-- Asks Redis about a request before nginx passes it on. README.md beside this file explains it.
local redis = require "nginx.redis" -- with OpenResty: resty.redis

local function ask(settings, words)
  local client = redis:new()
  client:set_timeout(settings.timeout_ms) -- to connect, and again to reply
  local reply, why = client:connect(settings.host, settings.port)
  if reply then reply, why = client["rl.all"](client, unpack(words)) end
  if reply then client:set_keepalive(60000, 100) else client:close() end
  return reply, why
end

-- The client's address. Of IPv6 the network, its first 64 bits, since a client has all addresses in it.
local function address()
  local text, bytes = ngx.var.remote_addr, ngx.var.binary_remote_addr
  if #bytes ~= 16 or text:find("^::ffff:%d+%.") then return (text:gsub("^::ffff:", "")) end
  return bytes:sub(1, 8):gsub("..", function(pair) return ("%02x%02x:"):format(pair:byte(1, 2)) end) .. ":/64"
end

local function request(settings, policies)
  if ngx.header["RateLimit-Policy"] then return end -- it was counted, and index or error_page sent it here
  local words, quotas, left = {}, {}, {}
  for _, policy in ipairs(policies) do
    local name, key, algorithm, limit, seconds = unpack(policy, 1, 5)
    if key then
      quotas[#quotas + 1] = ('"%s";q=%d;w=%d'):format(name, limit, seconds)
      for _, word in ipairs({ key, algorithm, limit, seconds, 1 }) do words[#words + 1] = word end
    end
  end
  if #words == 0 then return end
  local reply, why = ask(settings, words)
  if not reply then
    ngx.log(ngx.ERR, "Redis does not decide: ", why)
    return settings.fail == "closed" and ngx.exit(503)
  end
  local limited, retry_after, _, rows = unpack(reply)
  for i, row in ipairs(rows) do
    local refuses, _, remaining, wait, reset = unpack(row)
    local t = (limited == 0 or retry_after < 0) and reset or refuses == 1 and wait
    left[i] = ("%s;r=%d"):format(quotas[i]:match('^"[^"]*"'), remaining) .. (t and ";t=" .. math.ceil(t / 1000) or "")
  end
  ngx.header["RateLimit-Policy"], ngx.header["RateLimit"] = table.concat(quotas, ", "), table.concat(left, ", ")
  if retry_after >= 0 then ngx.header["Retry-After"] = math.ceil(retry_after / 1000) end
  return limited == 1 and ngx.exit(retry_after >= 0 and 429 or 403) -- 403: the limit is 0, and no wait helps
end
return { address = address, request = request }
