-- From version 1: channels, named slots, unchanged detection, decisions, consumers, depths as of a moment.

alter table destinations add column topics text;
alter table destinations add column start integer;
alter table deliveries add column named integer;
alter table deliveries add column kick integer;
alter table deliveries add column routed integer;
alter table deliveries add column redriven integer;
alter table idempotency add column same_as text;
alter table jobs add column consumer text;
alter table jobs add column rate real;
alter table jobs add column next_at integer not null default 0;
drop table snapshots;

create table named (                  -- as ready, for slots that one consumer alone may fetch
    destination integer not null,
    consumer    integer not null,
    priority    integer not null,
    sequence    integer not null,
    slot        integer not null,
    primary key (destination, consumer, priority, sequence, slot)
) without rowid;
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
create table snapshots (              -- depths at past moments; a row is true until the next one of its destination
    destination integer not null,     -- 0: at this moment all that had changed was written
    at          integer not null,
    "offset"    integer not null,
    states      text not null,        -- as in counts
    primary key (destination, at)
) without rowid;
create index contents_at on contents (object, at);
