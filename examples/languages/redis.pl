use strict;
use warnings;
use Redis;

my $redis = Redis->new(server => '127.0.0.1:6379');
my ($log, $all) = ('RL.LOG', 'RL.ALL');

for my $user ('alice', 'bob', 'eve') {
    my ($limited, $limit, $remaining, $retry_after, $reset_after) = $redis->$log("login:$user", 3, '1m');
    ($limited, $retry_after, my $at, my $rows) =
        $redis->$all("requests:{$user}", 'LOG', 10, '1m', 1, "tokens:{$user}", 'SLIDING', 5000, '1h', 2000);
    print "$user: $remaining of $limit left, $rows->[1][2] tokens left\n";
}
