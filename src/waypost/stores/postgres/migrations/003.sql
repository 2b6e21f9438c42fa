-- From schema 2: where consumers' marks must go down to. Brokers that know only schema 2 go on serving; every group of theirs ends all
-- marks.

update log_head set version = version + 1;  -- first, as groups do, so that nobody waits in a circle

create table lowerings (
    destination bigint not null,
    turn        bigint not null,       -- of the group that wrote it
    sequence    bigint not null,       -- from here on, somebody may have what he could not have before
    primary key (destination, turn)
);
alter table brokers add column lowers boolean not null default false;  -- it writes them
