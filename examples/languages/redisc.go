package main

import (
	"fmt"
	"log"

	"github.com/gomodule/redigo/redis"
	"github.com/mna/redisc"
)

func main() {
	cluster := redisc.Cluster{StartupNodes: []string{"127.0.0.1:7000"}}
	if err := cluster.Refresh(); err != nil {
		log.Fatal(err)
	}

	for _, user := range []string{"alice", "bob", "eve"} {
		left, err := redis.Int64s(do(&cluster, "RL.LOG", "login:"+user, 3, "1m"))
		if err != nil {
			log.Fatal(err)
		}
		all, err := redis.Values(do(&cluster, "RL.ALL", "requests:{"+user+"}", "LOG", 10, "1m", 1,
			"tokens:{"+user+"}", "SLIDING", 5000, "1h", 2000))
		if err != nil {
			log.Fatal(err)
		}
		rows := all[3].([]interface{})
		tokens, err := redis.Int64s(rows[1], nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %d of %d left, %d tokens left\n", user, left[2], left[1], tokens[2])
	}
}

func do(cluster *redisc.Cluster, command string, words ...interface{}) (interface{}, error) {
	conn := cluster.Get()
	defer conn.Close()
	return conn.Do(command, words...)
}
