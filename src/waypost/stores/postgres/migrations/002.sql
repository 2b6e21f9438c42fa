-- From schema 1: uploads, and the batches that they become. Brokers that know only schema 1 go on serving.

create table uploads (
    id       text primary key,
    kept_at  bigint not null,
    rows     bigint,                   -- null: its chunk came, and nobody keeps it yet
    hash     bytea,
    size     bigint not null,
    batch    bigint,                   -- the number of the batch that has it, null: none yet
    position integer not null,
    chunk    bytea not null
);
create index uploads_of on uploads (batch, position);
create index uploads_left on uploads (kept_at) where batch is null;
create table batches (
    number      bigint primary key,
    query       text not null,
    batch       bigint not null,
    rows        bigint not null,
    hash        bytea not null,
    accepted_at bigint not null,
    entered     bigint not null,       -- how many rows are messages already
    ended_at    bigint
);
create unique index batches_known on batches (query, batch);
create index batches_open on batches (number) where ended_at is null;
create index batches_ended on batches (ended_at) where ended_at is not null;

update log_head set version = version + 1;
