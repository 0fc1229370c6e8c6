#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>

static redisReply *checked(redisContext *redis, redisReply *reply) {
    if (reply && reply->type == REDIS_REPLY_ARRAY) return reply;
    fprintf(stderr, "%s\n", reply ? reply->str : redis->errstr);
    exit(1);
}

int main(void) {
    redisContext *redis = redisConnect("127.0.0.1", 6379);

    const char *users[] = {"alice", "bob", "eve"};
    for (int i = 0; i < 3; i++) {
        const char *user = users[i];
        redisReply *log = checked(redis, redisCommand(redis, "RL.LOG login:%s 3 1m", user));
        redisReply *all = checked(redis, redisCommand(redis,
            "RL.ALL requests:{%s} LOG 10 1m 1 tokens:{%s} SLIDING 5000 1h 2000", user, user));
        redisReply *rows = all->element[3], *tokens = rows->element[1];
        printf("%s: %lld of %lld left, %lld tokens left\n", user,
            log->element[2]->integer, log->element[1]->integer, tokens->element[2]->integer);
        freeReplyObject(log);
        freeReplyObject(all);
    }

    redisFree(redis);
}
