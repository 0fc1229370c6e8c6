require "redis"
require "redis-clustering" if Redis::VERSION >= "5"
nodes = ["redis://127.0.0.1:7000"]
redis = if Redis::VERSION >= "5" then Redis::Cluster.new(nodes: nodes, reconnect_attempts: 0)
        else Redis.new(cluster: nodes, reconnect_attempts: 0) end

%w[alice bob eve].each do |user|
  log = redis.call("RL.LOG", "login:#{user}", 3, "1m")
  all = redis.call("RL.ALL", "requests:{#{user}}", "LOG", 10, "1m", 1, "tokens:{#{user}}", "SLIDING", 5000, "1h", 2000)
  puts "#{user}: #{log[2]} of #{log[1]} left, #{all[3][1][2]} tokens left"
end
