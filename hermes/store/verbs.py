"""The verbs of a store: one list, from which both stores get theirs.

Each verb is a store function with a descriptor that says how it runs. On `SessionStore` it is a
plain method, on the store of `open_store` it returns a coroutine; type checkers know which:

    store.append_message("s1", "user", "hello")           # SessionStore
    await store.append_message("s1", "user", "hello")     # open_store

To add a verb, write a function that takes a `Transaction` and list it in `StoreVerbs`.
"""

from __future__ import annotations

from typing import Final

from hermes.store.attachments import rows as attachments, uploads
from hermes.store.conversations import (
    boundaries,
    inbox,
    leases,
    lineage,
    listing,
    messages,
    outbox,
    rotation,
    routes,
    search,
    sessions,
    titles,
    turns,
    usage,
)
from hermes.store.maintenance import cleanup, stats, transfer
from hermes.store.records import (
    access,
    branches,
    family,
    key_value,
    live,
    past_turns,
    platforms,
    requests,
    settings,
    sign_ins,
    tokens,
    tool_permissions,
    tool_records,
    views,
)
from hermes.store.responses import rows as responses
from hermes.store.verb_kinds import (
    alone,
    browses,
    chunked,
    deferred,
    reads,
    searches,
    unflushed,
    writes,
)


class StoreVerbs:
    """Everything that can be done with a store. Each verb is on disk when it returns, except those
    that are `unflushed` or `deferred`."""

    create_session: Final = writes(sessions.create_session)
    ensure_session: Final = writes(sessions.ensure_session)
    end_session: Final = writes(sessions.end_session)
    promote_to_session_reset: Final = writes(sessions.promote_to_session_reset)
    reopen_session: Final = writes(sessions.reopen_session)
    archive_session: Final = writes(sessions.archive_session)
    unarchive_session: Final = writes(sessions.unarchive_session)
    set_system_prompt: Final = writes(sessions.set_system_prompt)
    get_session: Final = reads(sessions.get_session)
    head: Final = reads(sessions.head)

    append_message: Final = writes(messages.append_message)
    append_messages: Final = writes(messages.append_messages)
    replace_messages: Final = writes(messages.replace_messages)
    rewind: Final = writes(messages.rewind)
    edit_message: Final = writes(messages.edit_message)
    get_messages: Final = reads(messages.get_messages)
    load: Final = reads(messages.load)
    get_page: Final = reads(listing.get_page)
    get_history: Final = reads(listing.get_history)

    set_session_title: Final = writes(titles.set_session_title)
    set_auto_title_if_empty: Final = writes(titles.set_auto_title_if_empty)
    get_next_title_in_lineage: Final = reads(titles.get_next_title_in_lineage)
    resolve_session_by_title: Final = reads(titles.resolve_session_by_title)

    resolve_session_id: Final = reads(lineage.resolve_session_id)
    get_compression_tip: Final = reads(lineage.get_compression_tip)
    get_compression_lineage: Final = reads(lineage.get_compression_lineage)
    get_conversation_root: Final = reads(lineage.get_conversation_root)

    get_route: Final = reads(routes.get_route)
    route_head: Final = reads(routes.route_head)
    follow_route: Final = writes(routes.follow_route)
    find: Final = reads(listing.find)
    new_session: Final = writes(routes.new_session)
    close_session: Final = writes(routes.close)
    configure: Final = writes(settings.configure)
    finalize: Final = writes(routes.finalize)
    switch: Final = writes(routes.switch)
    get_title: Final = reads(titles.get_title)
    set_title: Final = writes(routes.set_title)
    set_pending_title: Final = writes(routes.set_pending_title)
    apply_pending_title: Final = writes(titles.apply_pending_title)
    sweep_expired: Final = writes(routes.sweep_expired)

    accept: Final = writes(turns.accept)
    accept_request: Final = writes(requests.accept_request)
    waiting_calls: Final = reads(requests.waiting_calls)
    open_branch: Final = writes(branches.open_branch)
    list_branches: Final = reads(branches.list_branches)
    commit_turn: Final = writes(turns.commit_turn)
    open_inbox: Final = reads(inbox.open_inbox)
    waiting_keys: Final = reads(inbox.waiting_keys)
    start_inbox: Final = writes(inbox.start_inbox)
    store_transcripts: Final = writes(inbox.store_transcripts)
    restore_attempts: Final = writes(inbox.restore_attempts)
    park_inbox: Final = writes(inbox.park_inbox)
    withdraw: Final = writes(inbox.withdraw)
    post: Final = writes(turns.post)
    add_messages: Final = writes(turns.add_messages)
    last_source: Final = browses(turns.last_source)
    get_outcome: Final = reads(inbox.get_outcome)
    get_outcomes: Final = reads(inbox.get_outcomes)
    open_ids: Final = reads(inbox.open_ids)
    find_event: Final = reads(inbox.find_event)
    answer: Final = writes(inbox.close)

    get_file: Final = reads(attachments.get_file)
    find_file: Final = reads(uploads.find_file)
    list_files: Final = reads(uploads.list_files)
    keep_file: Final = writes(uploads.keep_file)
    copy_file: Final = writes(uploads.copy_file)

    get_response: Final = reads(responses.get_response)
    find_response: Final = reads(responses.find_response)
    response_to: Final = reads(responses.response_to)
    open_processes: Final = reads(responses.open_processes)
    attach_response: Final = writes(responses.attach_response)
    begin_answer: Final = unflushed(responses.begin_answer)
    end_connection: Final = deferred(responses.end_connection)
    record_process: Final = unflushed(responses.record_process)
    record_items: Final = writes(responses.record_items)
    delete_response: Final = writes(responses.delete_response)
    list_responses: Final = reads(responses.list_responses)
    delete_responses: Final = writes(responses.delete_responses)

    add_token: Final = writes(tokens.add_token)
    find_token: Final = reads(tokens.find_token)
    valid_tokens: Final = reads(tokens.valid_tokens)
    valid_digests: Final = reads(tokens.valid_digests)
    list_tokens: Final = reads(tokens.list_tokens)
    revoke_token: Final = writes(tokens.revoke_token)
    add_sign_in: Final = writes(sign_ins.add_sign_in)
    find_sign_in: Final = reads(sign_ins.find_sign_in)
    sign_in: Final = writes(sign_ins.sign_in)
    sign_in_paired: Final = writes(sign_ins.sign_in_paired)
    clear_sign_ins: Final = writes(sign_ins.clear_sign_ins)

    list_conversations: Final = browses(views.list_conversations)
    get_view: Final = reads(views.get_view)
    conversation_stamps: Final = reads(views.conversation_stamps)
    usage_by_turn: Final = browses(views.usage_by_turn)
    list_turns: Final = browses(past_turns.list_turns)
    turns_of_rows: Final = reads(past_turns.turns_of_rows)
    get_past_turn: Final = browses(past_turns.get_past_turn)
    get_call_rows: Final = browses(past_turns.get_call_rows)
    outbox_lanes: Final = browses(views.outbox_lanes)
    costs_today: Final = browses(live.costs_today)
    lane_rows: Final = browses(live.lane_rows)
    session_family: Final = browses(family.session_family)
    summary_rows: Final = browses(family.summary_rows)
    model_calls: Final = browses(family.model_calls)
    cached_conversations: Final = browses(family.cached_conversations)

    begin_once: Final = writes(tool_records.begin_once)
    end_once: Final = writes(tool_records.end_once)
    ask_approval: Final = writes(tool_records.ask_approval)
    take_approval: Final = writes(tool_records.take_approval)
    decide_approval: Final = writes(tool_records.decide_approval)
    revoke_tool: Final = writes(tool_permissions.revoke_tool)
    allowed_tools: Final = reads(tool_permissions.allowed_tools)
    show_approval: Final = writes(tool_records.show_approval)
    mark_shown: Final = writes(tool_records.mark_shown)
    get_approval: Final = reads(tool_records.get_approval)
    get_approved_call: Final = reads(tool_records.get_approved_call)
    list_approvals: Final = reads(tool_records.list_approvals)
    open_approvals: Final = reads(tool_records.open_approvals)
    pending_approvals: Final = reads(tool_records.pending_approvals)

    find_principal: Final = reads(access.find_principal)
    principals: Final = reads(access.principals)
    pairings: Final = reads(access.pairings)
    request_pairing: Final = writes(access.request_pairing)
    approve_pairing: Final = writes(access.approve_pairing)
    unpair: Final = writes(access.unpair)

    pending_outbox: Final = reads(outbox.pending_outbox)
    open_lanes: Final = reads(outbox.open_lanes)
    served_platforms: Final = reads(platforms.served_platforms)
    serve_platforms: Final = writes(platforms.serve_platforms)
    mark_sending: Final = writes(outbox.mark_sending)
    mark_part: Final = writes(outbox.mark_part)
    mark_sent: Final = writes(outbox.mark_sent)
    mark_unsent: Final = writes(outbox.mark_unsent)
    mark_unknown: Final = writes(outbox.mark_unknown)
    mark_dead: Final = writes(outbox.mark_dead)
    mark_lane_dead: Final = writes(outbox.mark_lane_dead)
    recover_outbox: Final = writes(outbox.recover_outbox)
    outbox_facts: Final = browses(outbox.outbox_facts)
    facts: Final = browses(stats.facts)

    pending_boundaries: Final = reads(boundaries.pending_boundaries)
    close_boundary: Final = writes(boundaries.close_boundary)

    rotate: Final = writes(rotation.rotate)
    branch: Final = writes(rotation.branch)
    acquire_lease: Final = writes(leases.acquire_lease)
    forget_runtimes: Final = writes(leases.forget_runtimes)
    try_acquire_compression_lock: Final = writes(leases.try_acquire_compression_lock)
    refresh_compression_lock: Final = writes(leases.refresh_compression_lock)
    release_compression_lock: Final = writes(leases.release_compression_lock)
    get_compression_lock_holder: Final = reads(leases.get_compression_lock_holder)

    update_token_counts: Final = writes(usage.update_token_counts)
    book: Final = writes(usage.book)
    get_usage: Final = reads(usage.get_usage)
    spent: Final = reads(usage.spent)
    get_meta: Final = reads(key_value.get_meta)
    set_meta: Final = writes(key_value.set_meta)

    list_sessions: Final = browses(listing.list_sessions)
    search_messages: Final = searches(search.search_messages)
    index_pending: Final = chunked(search.index_pending)
    index_word_forms: Final = chunked(search.index_word_forms)
    check_search: Final = alone(search.check_search)
    rebuild_search: Final = alone(search.rebuild_search)

    export_session: Final = browses(transfer.export_session)
    delete_session: Final = writes(cleanup.delete_session)
    prune_sessions: Final = chunked(cleanup.prune_sessions)
    prune_empty_ghost_sessions: Final = writes(cleanup.prune_empty_ghost_sessions)
    finalize_orphaned_compression_sessions: Final = writes(
        cleanup.finalize_orphaned_compression_sessions
    )
    forget_closed: Final = writes(cleanup.forget_closed)
    integrity_check: Final = browses(cleanup.integrity_check)
