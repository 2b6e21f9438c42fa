-- Waypost's SQLite store, version 4.
--
-- The log is not one table: what happened is written where it is needed anyway, and each row takes the offsets of the
-- transitions it stands for (rows.py turns rows into events, one for one):
--
--     messages   one row a message: L, and with it the Q of every slot it was routed to
--     fetches    one row a fetch: Q or R -> F, with its receipt, its times and how it ended
--     steps      one row for any other step of a slot: F -> S (-> X), F -> N -> Q, R -> T ...
--
-- A delivery that was routed and never touched has no row of its own: its message's `route` and its row in `ready` say all.
-- Every other delivery is a row of `deliveries`. `ready` holds just what can be fetched now.

create table destinations (
    number     integer primary key,   -- names one incarnation; a new queue of the same name has another
    kind       integer not null,      -- 1 queue, 2 channel
    name       text not null,
    policy     text not null,         -- JSON
    created_at integer not null,
    deleted_at integer,
    slotted    integer not null,      -- 1: not every row is like the others: several slots, kicks
    topics     text,                  -- JSON: a channel's patterns
    start      integer                -- a channel's: the first sequence it gets
);
create unique index destinations_named on destinations (kind, name) where deleted_at is null;

create table parties (                -- producers and consumers
    number integer primary key,
    name   text not null unique
);

create table messages (
    sequence    integer primary key,  -- the offset of its L
    at          integer not null,     -- microseconds since 1970, as everywhere
    salt        integer not null,     -- the random bits of its id
    own_id      text,                 -- given by the producer instead
    route,                            -- its slots, as routed with L: rows.py
    topics      text not null,        -- comma-separated
    object      text,
    key         text,
    mime_type   text,
    timestamp   integer,
    sent        integer,
    producer    integer,
    encoding    text,
    meta        text,                 -- JSON
    traceparent text,
    priority    integer not null,
    expires_at  integer,
    same_as     integer,              -- id of the message it repeats, as a blob
    hash        blob not null,        -- SHA-256 of the body
    size        integer not null,
    body                              -- blob; text: the name of its file; null: reaped
);
create table own_ids (
    id       text primary key,
    sequence integer not null
) without rowid;
create table bodies (                 -- large ones lie in files
    name     text primary key,
    sequence integer not null
) without rowid;

create table ready (
    destination integer not null,
    priority    integer not null,
    sequence    integer not null,
    slot        integer not null,
    known       integer not null,     -- 1: it has a row in deliveries
    primary key (destination, priority, sequence, slot)
) without rowid;

create table named (                  -- as ready, for slots that one consumer alone may fetch
    destination integer not null,
    consumer    integer not null,
    priority    integer not null,
    sequence    integer not null,
    slot        integer not null,
    primary key (destination, consumer, priority, sequence, slot)
) without rowid;

create table deliveries (
    sequence    integer not null,
    destination integer not null,     -- 0: not a delivery, but the message's own U or X, or its rows before it was routed
    slot        integer not null,
    state       integer not null,
    attempt     integer not null,     -- fetches so far
    tries       integer not null,     -- those that count against `retries`
    consumer    integer,              -- who had it last
    reason      text,
    since_at    integer not null,     -- when it entered its state
    last        integer not null,     -- offset of its last row in fetches or steps, 0: none yet
    due_at      integer,              -- waiting: when it becomes ready; fetched: when the lease ends
    expires_at  integer,
    named       integer,              -- the only consumer that may fetch it
    kick        integer,              -- 1: handed out and not waited for
    routed      integer,              -- whom routing named it for; a redrive may name another
    redriven    integer,              -- the offset of its last redrive
    primary key (sequence, destination, slot)
) without rowid;
create index deliveries_due on deliveries (due_at) where due_at is not null;
create index deliveries_expiring on deliveries (expires_at) where expires_at is not null and state in (3, 7);
create index deliveries_dead on deliveries (sequence) where state in (8, 9);

create table fetches (
    "offset"    integer primary key,
    at          integer not null,
    sequence    integer not null,
    destination integer not null,
    slot        integer not null,
    from_state  integer not null,
    duration_ms integer not null,     -- spent in from_state
    attempt     integer not null,
    consumer    integer not null,
    salt        integer not null,     -- the random bits of its receipt, as a signed number
    previous    integer not null,     -- the slot's row before this one, 0: none
    until_at    integer not null,     -- the lease as given
    settled_at  integer,              -- when it ended, by a confirm or without one
    outcome     integer,              -- rows.py; null while a confirm may still come
    became      integer               -- the slot's state by it
);
create table steps (
    "offset"    integer primary key,
    at          integer not null,
    sequence    integer not null,
    destination integer not null,
    slot        integer not null,
    path        integer not null,     -- the states gone through, five bits each: rows.py
    duration_ms integer not null,     -- spent in the first of them
    attempt     integer not null,
    consumer    integer,
    reason      text,
    previous    integer not null
);

create table refusals (               -- who said not-interested
    sequence    integer not null,
    destination integer not null,
    slot        integer not null,
    consumer    integer not null,
    primary key (sequence, destination, slot, consumer)
) without rowid;
create table keyed (                  -- open deliveries where keys count: an order by key, latestOnly
    destination integer not null,
    key         text not null,
    sequence    integer not null,
    slot        integer not null,
    fetched     integer not null,
    primary key (destination, key, sequence, slot)
) without rowid;
create index keyed_fetched on keyed (destination, key, sequence) where fetched;
create table latest (                 -- latestOnly: the newest message of a thing that came there
    destination integer not null,
    object      text not null,
    key         text not null,
    sequence    integer not null,
    primary key (object, key, destination)
) without rowid;
create trigger latest_forgotten after delete on messages begin
    delete from latest where object = old.object and key = old.key and sequence = old.sequence;
end;

create table idempotency (
    producer integer not null,        -- 0: none
    key      text not null,
    hash     blob not null,
    at       integer not null,
    id       text not null,           -- the answer: the message's id and state
    state    integer not null,
    same_as  text,
    unique (producer, key)
);

create table undecided (              -- messages that are not routed
    sequence integer primary key,
    object   text,
    due_at   integer,                 -- when it may be fetched first
    force    integer not null,
    failed   integer not null         -- 1: its routing failed, it stands with the dead letters
);
create table objects (
    name   text primary key,
    policy text not null              -- JSON
) without rowid;
create table contents (               -- the last message of a thing that was not unchanged
    object   text not null,
    key      text not null,
    hash     blob not null,           -- of its content
    id       text not null,
    sequence integer not null,
    at       integer not null,
    ended    integer,                 -- its state when it was forgotten
    primary key (object, key)
) without rowid;
create index contents_at on contents (object, at);
create table unchanged (              -- how often
    object   text not null,
    producer text not null,
    count    integer not null,
    primary key (object, producer)
) without rowid;
create table consumers (
    name       text primary key,
    consumer   text not null,         -- JSON
    created_at integer not null
) without rowid;

create table counts (
    destination integer primary key,
    ready       integer not null,
    bytes       integer not null,     -- of what has not ended
    states      text not null         -- JSON: how many deliveries, by state's number
);
create table snapshots (              -- depths at past moments; a row is true until the next one of its destination
    destination integer not null,     -- 0: at this moment all that had changed was written
    at          integer not null,
    "offset"    integer not null,
    states      text not null,        -- as in counts
    primary key (destination, at)
) without rowid;
create table spectators (
    name     text primary key,
    "offset" integer not null,        -- the last one read
    at       integer not null
) without rowid;
create table jobs (
    number      integer primary key,
    kind        text not null,
    filter      text not null,        -- JSON
    destination integer,              -- of a deleted queue or channel, or of a channel that is filled
    until       integer not null,     -- messages logged by then
    newest      integer not null,     -- destinations made by then
    after       integer not null,     -- done up to this sequence
    matched     integer not null,
    done        integer not null,
    started_at  integer not null,
    ended_at    integer,
    consumer    text,                 -- who alone may have what is redriven
    rate        real,                 -- deliveries a second
    next_at     integer not null default 0
);
create index jobs_open on jobs (number) where ended_at is null;

create table head (                   -- one row
    id       text not null,           -- of the store, from its creation
    "offset" integer not null,        -- the last one given
    at       integer not null,        -- its instant; never falls
    oldest   integer not null,        -- the first that can still be read
    sealed   integer                  -- the last one that a lake holds; null: none ever held any
);
create table erasures (               -- payloads that are gone here, and that a lake may still hold
    sequence integer primary key
);

create table uploads (                -- rows that are kept and not seen; each lies in a file of its name among the bodies
    id       text primary key,
    rows     integer not null,
    hash     blob not null,
    size     integer not null,
    kept_at  integer not null,
    batch    integer,                 -- the number of the batch that has it, null: none yet
    position integer not null,
    checksum blob not null            -- SHA-256 of the file
) without rowid;
create index uploads_of on uploads (batch, position);
create table batches (
    number      integer primary key,
    query       text not null,
    batch       integer not null,
    rows        integer not null,
    hash        blob not null,
    accepted_at integer not null,
    entered     integer not null,     -- how many rows are messages already
    ended_at    integer,
    unique (query, batch)
);
create index batches_open on batches (number) where ended_at is null;
create index batches_ended on batches (ended_at) where ended_at is not null;
