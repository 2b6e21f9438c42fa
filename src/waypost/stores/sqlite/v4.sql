-- From version 3: uploads, and the batches that they become.

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
