"""Functions in the database that do a whole verb: `accept` and `commit_turn`, as far as usual.

The verbs in Python say what is right. A function does the same for the usual case, and answers NULL
for any other, before it has written anything; then the verb runs. The keys of all requests are
locked already. `requests` calls them. `owner` and `fence` are the claim of whoever asks, if it
needs one. With `places`, a message must be for a node that lives, which is `node` in the answer.
"""

from __future__ import annotations

# A request is an object with the fields of the record. Answers are in the order of the requests.

ACCEPT = """
CREATE FUNCTION hermes_accept(requests json, now double precision)
RETURNS SETOF json LANGUAGE plpgsql AS $$
DECLARE request record; seen record; new_id bigint;
BEGIN
  FOR request IN SELECT * FROM json_to_recordset(requests) AS (
    key text, platform text, account text, event text, scope text, digest text, body text,
    from_platform text, chat_type text, user_id text, expires_at double precision,
    max_queued bigint, delivers bigint, node bigint, places bigint, owner bigint, fence bigint)
  LOOP
    SELECT r.session_id, r.epoch, json_build_array(
        r.session_key, r.session_id, r.epoch, r.platform, r.chat_type, r.user_id, r.pending_title,
        r.notice, r.expires_at, r.last_active, r.settings) AS route,
      coalesce(s.message_count, 0) AS message_count, coalesce(s.revision, 0) AS revision,
      coalesce(s.rewrites, 0) AS rewrites, i.waiting, i.previous,
      CASE WHEN request.places = 1 THEN n.id END AS node, r.fence
    INTO seen
    FROM routes r LEFT JOIN sessions s ON s.id = r.session_id
    LEFT JOIN nodes n ON n.id = r.owner AND n.dead = 0 CROSS JOIN LATERAL (
      SELECT count(*) AS waiting, coalesce(max(id), 0) AS previous FROM inbox
      WHERE session_key = request.key AND state = 'open') i
    WHERE r.session_key = request.key AND s.end_reason IS NULL
      AND (request.places = 0 OR n.id IS NOT NULL)
      AND (request.owner IS NULL OR (r.owner = request.owner AND r.fence = request.fence))
      AND (r.expires_at IS NULL OR r.expires_at > now) AND i.waiting < request.max_queued
      AND NOT EXISTS (SELECT 1 FROM inbox e WHERE e.platform = request.platform
        AND e.account = request.account AND e.event_id = request.event
        AND (e.scope = request.scope OR (e.scope = '' AND e.session_key = request.key)));
    IF NOT FOUND THEN
      RETURN NEXT NULL;
      CONTINUE;
    END IF;
    UPDATE routes SET last_active = now, expires_at = request.expires_at,
      platform = request.from_platform, chat_type = request.chat_type, user_id = request.user_id
    WHERE session_key = request.key;
    INSERT INTO inbox (platform, account, event_id, scope, digest, session_key, session_id, epoch,
      body, accepted_at, attempts)
    VALUES (request.platform, request.account, request.event, request.scope, request.digest,
      request.key, seen.session_id, seen.epoch, request.body, now,
      CASE WHEN seen.waiting = 0 AND coalesce(seen.node, 0) = request.node
        THEN request.delivers ELSE 0 END)
    RETURNING id INTO new_id;
    RETURN NEXT json_build_array(new_id, seen.route, seen.message_count, seen.revision,
      seen.rewrites, seen.waiting, seen.previous, seen.node, seen.fence);
  END LOOP;
END $$;
"""

# The columns of a session are changed once. Its cost is added call by call, as the verb does it:
# sums of floats depend on the order.
COMMIT_TURN = """
CREATE FUNCTION hermes_commit_turn(requests json, now double precision)
RETURNS SETOF json LANGUAGE plpgsql AS $$
DECLARE
  request record; session record; used record; item record; payer text; number bigint;
  first_id bigint; sent bigint[];
BEGIN
  FOR request IN SELECT * FROM json_to_recordset(requests) AS (
    key text, session_id text, epoch bigint, revision bigint, inbox_ids bigint[], turn_id bigint,
    reply text, reply_end text, answered bigint, messages json, row_count bigint, tool_calls bigint,
    usage json, outbox json, next_ids bigint[], expires_at double precision, contents bigint[],
    started_at double precision, status text, details text, owner bigint, fence bigint)
  LOOP
    SELECT s.* INTO session FROM routes r JOIN sessions s ON s.id = r.session_id
    WHERE r.session_key = request.key AND r.session_id = request.session_id
      AND r.epoch = request.epoch AND r.pending_title IS NULL AND s.end_reason IS NULL
      AND s.revision = request.revision
      AND s.seq + request.row_count < 4294967296
      AND (request.owner IS NULL OR (r.owner = request.owner AND r.fence = request.fence))
    FOR NO KEY UPDATE OF s;
    IF NOT FOUND OR (SELECT count(*) FROM inbox WHERE id = ANY (request.inbox_ids)
      AND session_key = request.key AND state = 'open') <> cardinality(request.inbox_ids)
    THEN
      RETURN NEXT NULL;
      CONTINUE;
    END IF;
    first_id := session.no * 4294967296 + session.seq + 1;
    IF request.row_count > 0 THEN
      session.revision := session.revision + 1;
      session.last_active := greatest(session.last_active, now);
    END IF;
    IF request.usage IS NOT NULL THEN
      SELECT coalesce(body::json #>> '{source,platform}', 'embedded') || '/'
        || coalesce(body::json #>> '{source,user_id}', '')
      INTO payer FROM inbox WHERE id = request.turn_id;
      FOR used IN SELECT * FROM json_to_recordset(request.usage) AS (
        purpose text, model text, provider text, input bigint, output bigint, cache_read bigint,
        cache_write bigint, reasoning bigint, cost double precision, auxiliary bigint)
      LOOP
        INSERT INTO usage (session_no, turn_id, purpose, model, provider, input_tokens,
          output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost, created_at,
          payer)
        VALUES (session.no, request.turn_id, used.purpose, used.model, used.provider, used.input,
          used.output, used.cache_read, used.cache_write, used.reasoning, used.cost, now, payer);
        session.cost := session.cost + coalesce(used.cost, 0);
        IF used.auxiliary = 0 THEN
          session.api_call_count := session.api_call_count + 1;
          session.input_tokens := session.input_tokens + used.input;
          session.output_tokens := session.output_tokens + used.output;
          session.cache_read_tokens := session.cache_read_tokens + used.cache_read;
          session.cache_write_tokens := session.cache_write_tokens + used.cache_write;
          session.reasoning_tokens := session.reasoning_tokens + used.reasoning;
          session.model := coalesce(session.model, used.model);
        END IF;
      END LOOP;
    END IF;
    IF request.row_count > 0 OR request.usage IS NOT NULL THEN
      UPDATE sessions s SET seq = s.seq + request.row_count,
        message_count = s.message_count + request.row_count,
        tool_call_count = s.tool_call_count + request.tool_calls, revision = session.revision,
        last_active = session.last_active, cost = session.cost, model = session.model,
        api_call_count = session.api_call_count, input_tokens = session.input_tokens,
        output_tokens = session.output_tokens, cache_read_tokens = session.cache_read_tokens,
        cache_write_tokens = session.cache_write_tokens,
        reasoning_tokens = session.reasoning_tokens
      WHERE s.no = session.no;
    END IF;
    INSERT INTO messages (id, role, content, created_at, platform_message_id, extra)
    SELECT first_id + n, role, content, created_at, platform_id, extra
    FROM json_to_recordset(request.messages) AS (n bigint, role text, content text,
      created_at double precision, platform_id text, extra text);
    IF request.status IS NOT NULL THEN
      INSERT INTO session_contents (session_no, content_id)
      SELECT session.no, content_id FROM unnest(request.contents) content_id
      ON CONFLICT (session_no, content_id) DO NOTHING;
      INSERT INTO turns (session_no, id, first_id, row_count, started_at, ended_at, status, details)
      VALUES (session.no, request.turn_id, CASE WHEN request.row_count > 0 THEN first_id ELSE 0 END,
        request.row_count, request.started_at, now, request.status, request.details);
    END IF;
    sent := '{}';
    FOR item IN SELECT * FROM json_to_recordset(request.outbox) AS (lane text, body text) LOOP
      INSERT INTO outbox (session_key, turn_id, lane, body, created_at)
      VALUES (request.key, request.turn_id, item.lane, item.body, now) RETURNING id INTO number;
      sent := sent || number;
    END LOOP;
    request.reply := request.reply || '"messages":' || CASE WHEN request.row_count = 0 THEN 'null'
      ELSE format('[%s,%s]', first_id, first_id + request.row_count - 1) END || request.reply_end;
    FOREACH number IN ARRAY request.inbox_ids LOOP
      UPDATE inbox SET state = 'done', closed_at = now, body = NULL, turn_id = request.answered,
        reply = CASE WHEN id = request.answered THEN request.reply END
      WHERE id = number;
    END LOOP;
    UPDATE inbox SET attempts = attempts + 1 WHERE id = ANY (request.next_ids);
    UPDATE routes SET last_active = now, expires_at = coalesce(request.expires_at, expires_at),
      notice = NULL
    WHERE session_key = request.key;
    RETURN NEXT json_build_array(first_id, session.message_count + request.row_count,
      session.revision, session.rewrites, sent);
  END LOOP;
END $$;
"""

FUNCTIONS: str = ACCEPT + COMMIT_TURN
