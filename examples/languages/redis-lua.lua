local redis = require "redis"
redis.define_command("rl_log", { command = "RL.LOG" })
redis.define_command("rl_all", { command = "RL.ALL" })
local client = redis.connect("127.0.0.1", 6379)

for _, user in ipairs { "alice", "bob", "eve" } do
  local limited, limit, remaining, retry_after, reset_after = unpack(client:rl_log("login:" .. user, 3, "1m"))
  local limited, retry_after, at, rows = unpack(client:rl_all(
    "requests:{" .. user .. "}", "LOG", 10, "1m", 1, "tokens:{" .. user .. "}", "SLIDING", 5000, "1h", 2000))
  print(user .. ": " .. remaining .. " of " .. limit .. " left, " .. rows[2][3] .. " tokens left")
end
