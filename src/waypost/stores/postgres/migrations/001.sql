-- Waypost on PostgreSQL, version 1. Instants are microseconds since 1970; states, kinds and outcomes are those of the core.

create table log_head (
    one           integer primary key check (one = 1),
    id            text not null,       -- the store's own, from its creation
    next          bigint not null,     -- the next event's offset; updating it is the last lock of every group
    at            bigint not null,     -- of the last group; never falls
    oldest        bigint not null,     -- the first offset that can be read
    sealed        bigint,              -- the last one that a lake holds
    turn          bigint not null,     -- rises with every group: whoever waits looks at it
    version       bigint not null,     -- of all names and policies: who has cached an older one reads them anew
    undecided     bigint not null,     -- messages in L that wait for a decision
    snapshot_at   bigint not null,
    snapshot_next bigint not null
);

create table destinations (
    number     bigint primary key,     -- names one incarnation; a new queue of the same name has another
    kind       smallint not null,      -- 1 queue, 2 channel
    name       text not null,
    policy     text not null,          -- JSON
    created_at bigint not null,
    deleted_at bigint,
    topics     text not null,          -- a channel's patterns, comma-separated
    start      bigint not null         -- a channel's: the first sequence it gets
);
create unique index destinations_named on destinations (kind, name) where deleted_at is null;

create table counts (                  -- deliveries in each state
    destination bigint primary key,
    q bigint not null, f bigint not null, s bigint not null, k bigint not null, r bigint not null, e bigint not null,
    i bigint not null, n bigint not null, o bigint not null, t bigint not null, c bigint not null,
    bytes   bigint not null,           -- of what has not ended
    ready   bigint not null,           -- can be fetched now, were it not paused
    changed bigint not null            -- the turn of the group that wrote it last
);

create table objects (
    name   text primary key,
    policy text not null               -- JSON
);
create table unchanged (
    object   text not null,
    producer text not null,
    count    bigint not null,
    primary key (object, producer)
);
create table consumers (
    name       text primary key,
    consumer   text not null,          -- JSON
    created_at bigint not null
);
create table spectators (
    name     text primary key,
    "offset" bigint not null,
    at       bigint not null
);

create table messages (
    sequence   bigint primary key,     -- the offset of its L
    at         bigint not null,
    salt       integer not null,       -- the random bits of its id
    own_id     text,                   -- given by the producer instead
    envelope   text not null,          -- JSON: what the producer said
    object     text,                   -- of it, what is searched for
    key        text,
    hash       bytea not null,         -- SHA-256 of the body
    size       bigint not null,
    priority   smallint not null,
    expires_at bigint,
    due_at     bigint,
    force      boolean not null,
    kept       boolean not null,       -- its body is in payloads
    routed     boolean not null,
    undecided  boolean not null,       -- waits in L for a decision
    same_as    text,
    ended_at   bigint
);
create unique index messages_own on messages (own_id) where own_id is not null;
create index messages_undecided on messages (sequence) where undecided;
create table payloads (
    sequence bigint primary key,
    body     bytea not null
);

create table deliveries (
    sequence    bigint not null,
    destination bigint not null,
    slot        smallint not null,
    priority    smallint not null,     -- its turn: priority, sequence, slot
    key         text,                  -- the message's
    state       smallint not null,
    blocked     boolean not null,      -- in a queue ordered by key: another message of its key comes first
    since_at    bigint not null,       -- when it entered its state
    due_at      bigint,                -- waiting: when it becomes ready; fetched: when the lease ends
    expires_at  bigint,
    named       text,                  -- the only consumer that may fetch it
    kick        boolean not null,      -- handed out and not waited for
    attempt     integer not null,      -- fetches so far
    tries       integer not null,      -- those that count against `retries`
    consumer    text,                  -- who had it last
    reason      text,
    routed      text,                  -- whom routing named it for
    redriven    bigint not null,       -- the offset of its last redrive
    refused     text not null,         -- consumers that were not interested: ,ann,bob,
    fetched     bigint,                -- the fetch whose receipt counts
    primary key (sequence, destination, slot)
);
create index deliveries_ready on deliveries (destination, priority, sequence, slot)
    where state in (3, 7) and due_at is null and not blocked;
create index deliveries_keyed on deliveries (destination, key, sequence) where key is not null and state in (3, 4, 7);
create index deliveries_due on deliveries (due_at, sequence, destination, slot) where due_at is not null;
create index deliveries_expiring on deliveries (expires_at, sequence, destination, slot)
    where expires_at is not null and state in (3, 7);
create index deliveries_dead on deliveries (sequence) where state in (8, 9);

create table fetches (
    "offset"    bigint primary key,    -- of its F
    sequence    bigint not null,
    destination bigint not null,
    slot        smallint not null,
    salt        bigint not null,       -- the random bits of its receipt, as a signed number
    consumer    text not null,
    at          bigint not null,
    outcome     text,
    became      smallint
);
create index fetches_of on fetches (sequence);

create table events (
    "offset"    bigint primary key,
    at          bigint not null,
    message_id  text not null,
    sequence    bigint not null,
    destination bigint,
    slot        smallint,
    from_state  smallint,
    to_state    smallint not null,
    attempt     integer,
    consumer    text,
    reason      text,
    duration_ms bigint,
    envelope    text,                  -- on L, with hash and size
    hash        bytea,
    size        bigint,
    same_as     text
);
create index events_of on events (sequence);
create index events_at on events (at);

create table parties (                 -- numbers for consumers, for those who compute
    number integer primary key,
    name   text not null unique        -- of everybody who ever was in an event
);

create table idempotency (
    producer text not null,            -- '' where none was given
    key      text not null,
    hash     bytea not null,
    id       text not null,
    state    smallint not null,
    same_as  text,
    at       bigint not null,
    primary key (producer, key)
);
create index idempotency_at on idempotency (at);
create table contents (
    object   text not null,
    key      text not null,
    hash     bytea not null,
    id       text not null,
    sequence bigint not null,
    at       bigint not null,
    ended    smallint,
    primary key (object, key)
);
create table latest (
    destination bigint not null,
    object      text not null,
    key         text not null,
    sequence    bigint not null,
    primary key (destination, object, key)
);

create table jobs (
    number      bigint primary key,
    kind        text not null,
    filter      text not null,         -- JSON
    destination bigint,
    until       bigint not null,
    newest      bigint not null,
    cursor      bigint not null,
    matched     bigint not null,
    done        bigint not null,
    started_at  bigint not null,
    ended_at    bigint,
    consumer    text,
    rate        double precision,
    next_at     bigint not null
);
create table erasures (
    sequence bigint primary key
);
create table snapshots (
    destination bigint not null,       -- 0: all others are as they were
    at          bigint not null,
    "offset"    bigint not null,
    states      text not null,         -- JSON
    primary key (destination, at)
);

create table latches (                 -- a group locks the row that a key's hash names, in order of the numbers
    number integer primary key
);
create table brokers (
    id         text primary key,
    last_group bigint not null,        -- after a lost COMMIT: whether it went through
    seen_at    timestamptz not null default now()
);
create table owned (                   -- what one broker does for all
    task   text primary key,
    broker text not null,
    until  timestamptz not null,
    asked  bigint not null default 0   -- up to where somebody waits for it
);

insert into log_head values (1, replace(gen_random_uuid()::text, '-', ''), 1, 0, 1, null, 0, 1, 0, 0, 1);
insert into latches select generate_series(0, 255);
