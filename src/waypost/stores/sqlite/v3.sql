-- From version 2: what a lake holds, and what it has to erase.

alter table head add column sealed integer;
create table erasures (               -- payloads that are gone here, and that a lake may still hold
    sequence integer primary key
);
