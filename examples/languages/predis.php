<?php
require 'Predis/Autoloader.php';
Predis\Autoloader::register();
use Predis\Command\RawCommand;

$redis = new Predis\Client(['tcp://127.0.0.1:7000'], ['cluster' => 'redis']);
$cluster = $redis->getConnection();
foreach (['RL.FIXED', 'RL.SLIDING', 'RL.LOG', 'RL.ALL', 'RL.PEEK', 'RL.INFO'] as $name) {
    $cluster->getClusterStrategy()->setCommandHandler($name, fn($command) => $command->getArgument(0));
}
Predis\Client::VERSION < '2' ? $cluster->askSlotsMap() : $cluster->askSlotMap();
$cluster->setRetryLimit(0);

foreach (['alice', 'bob', 'eve'] as $user) {
    $log = $redis->executeCommand(RawCommand::create('RL.LOG', "login:$user", 3, '1m'));
    $all = $redis->executeCommand(RawCommand::create('RL.ALL', "requests:{{$user}}", 'LOG', 10, '1m', 1,
        "tokens:{{$user}}", 'SLIDING', 5000, '1h', 2000));
    echo "$user: $log[2] of $log[1] left, {$all[3][1][2]} tokens left\n";
}
