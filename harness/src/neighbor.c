/* A module that writes to other keys while the server tells it about one, for tests of what that does to redis-rl.
 *
 *   NEIGHBOR.ON event key command [argument ...]
 *       Whenever this event about this key is published, run the command and replicate it.
 *   NEIGHBOR.OFF
 *       Forget all of that.
 *   NEIGHBOR.RAN
 *       How many commands have been run.
 *
 * The events are keyspace events, and "removed" where servers have the server event about keys: a key is about to be
 * removed. An argument of the module is its name; "neighbor" without one. The server's header is not needed: a module asks
 * the server for each function by its name. */
#include <string.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Reply Reply;

typedef int Command(Context *, String **, int);
typedef int OnKeyspaceEvent(Context *, int, const char *, String *);

typedef struct { unsigned long long id, version; } Event;
typedef void OnServerEvent(Context *, Event, unsigned long long, void *);
/* What the server passes with an event about a key. */
typedef struct { unsigned long long version; void *key; } OfKey;

static void (*set_attributes)(Context *, const char *, int, int);
static int (*create_command)(Context *, const char *, Command *, const char *, int, int, int);
static int (*subscribe_to_keyspace)(Context *, int, OnKeyspaceEvent *);
static int (*subscribe_to_server)(Context *, Event, OnServerEvent *);
static const String *(*name_of)(void *);
static const char *(*bytes_of)(const String *, size_t *);
static String *(*copy)(Context *, const String *);
static void (*free_string)(Context *, String *);
static Reply *(*call)(Context *, const char *, const char *, ...);
static void (*free_reply)(Reply *);
static int (*reply_ok)(Context *, const char *);
static int (*reply_integer)(Context *, long long);
static int (*reply_wrong_arity)(Context *);

enum { OK = 0, ERROR = 1, API = 1, MOST_WORDS = 16, MOST_RULES = 64 };

/* From the server's documentation: generic, expired, module, new; and the server event about keys. */
enum { EVENTS = 1 << 2 | 1 << 8 | 1 << 13 | 1 << 14 };
static const Event KEY = { 17, 1 };

/* The event, the key, the command and its arguments. */
typedef struct { String *words[MOST_WORDS]; int count; } Rule;

static Rule rules[MOST_RULES];
static int rule_count;
static long long commands_run;

static int equal(const String *string, const char *bytes, size_t length) {
    size_t own;
    const char *own_bytes = bytes_of(string, &own);
    return own == length && memcmp(own_bytes, bytes, length) == 0;
}

static void run_rules(Context *ctx, const char *event, const String *key) {
    size_t length;
    const char *name = bytes_of(key, &length);
    for (int i = 0; i < rule_count; i++) {
        Rule *rule = &rules[i];
        if (!equal(rule->words[0], event, strlen(event)) || !equal(rule->words[1], name, length)) continue;
        Reply *reply = call(ctx, bytes_of(rule->words[2], NULL), "!v", rule->words + 3, (size_t)rule->count - 3);
        if (reply) free_reply(reply);
        commands_run++;
    }
}

static int on_keyspace_event(Context *ctx, int class, const char *event, String *key) {
    (void)class;
    run_rules(ctx, event, key);
    return OK;
}

static void on_key_event(Context *ctx, Event event, unsigned long long reason, void *data) {
    (void)event;
    /* Not of one that has expired, which the server would remove again. */
    if (reason == 0) run_rules(ctx, "removed", name_of(((OfKey *)data)->key));
}

static int on(Context *ctx, String **words, int count) {
    if (count < 4 || count - 1 > MOST_WORDS || rule_count == MOST_RULES) return reply_wrong_arity(ctx);
    Rule *rule = &rules[rule_count++];
    rule->count = count - 1;
    for (int i = 0; i < rule->count; i++) rule->words[i] = copy(NULL, words[i + 1]);
    return reply_ok(ctx, "OK");
}

static int off(Context *ctx, String **words, int count) {
    (void)words, (void)count;
    for (int i = 0; i < rule_count; i++) {
        for (int j = 0; j < rules[i].count; j++) free_string(NULL, rules[i].words[j]);
    }
    rule_count = 0;
    return reply_ok(ctx, "OK");
}

static int ran(Context *ctx, String **words, int count) {
    (void)words, (void)count;
    return reply_integer(ctx, commands_run);
}

int RedisModule_OnLoad(Context *ctx, String **words, int count) {
    /* A context begins with the function that looks up all others. */
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    if (get("RedisModule_SetModuleAttribs", &set_attributes) != OK ||
        get("RedisModule_CreateCommand", &create_command) != OK ||
        get("RedisModule_SubscribeToKeyspaceEvents", &subscribe_to_keyspace) != OK ||
        get("RedisModule_SubscribeToServerEvent", &subscribe_to_server) != OK ||
        get("RedisModule_GetKeyNameFromModuleKey", &name_of) != OK ||
        get("RedisModule_StringPtrLen", &bytes_of) != OK ||
        get("RedisModule_CreateStringFromString", &copy) != OK ||
        get("RedisModule_FreeString", &free_string) != OK ||
        get("RedisModule_Call", &call) != OK ||
        get("RedisModule_FreeCallReply", &free_reply) != OK ||
        get("RedisModule_ReplyWithSimpleString", &reply_ok) != OK ||
        get("RedisModule_ReplyWithLongLong", &reply_integer) != OK ||
        get("RedisModule_WrongArity", &reply_wrong_arity) != OK) return ERROR;
    set_attributes(ctx, count > 0 ? bytes_of(words[0], NULL) : "neighbor", 1, API);
    /* Redis 7.0 has no such event. */
    subscribe_to_server(ctx, KEY, on_key_event);
    return subscribe_to_keyspace(ctx, EVENTS, on_keyspace_event) == OK &&
                   create_command(ctx, "neighbor.on", on, "", 0, 0, 0) == OK &&
                   create_command(ctx, "neighbor.off", off, "", 0, 0, 0) == OK &&
                   create_command(ctx, "neighbor.ran", ran, "", 0, 0, 0) == OK
               ? OK
               : ERROR;
}
