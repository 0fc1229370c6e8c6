<?php
$redis = new RedisCluster(null, ['127.0.0.1:7000']);

foreach (['alice', 'bob', 'eve'] as $user) {
    $log = $redis->rawCommand("login:$user", 'RL.LOG', "login:$user", 3, '1m');
    $all = $redis->rawCommand("requests:{{$user}}", 'RL.ALL', "requests:{{$user}}", 'LOG', 10, '1m', 1,
        "tokens:{{$user}}", 'SLIDING', 5000, '1h', 2000);
    $log && $all or throw new Exception($redis->getLastError());
    echo "$user: $log[2] of $log[1] left, {$all[3][1][2]} tokens left\n";
}
