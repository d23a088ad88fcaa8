-- For queries of people, and for longhaul's own. Whoever may read the tables may call them.

-- The bin of a positive value, see longhaul.histogram; NULL of others. The outermost bins, the last
-- ones that numeric has digits for, have what is beyond them too.
CREATE OR REPLACE FUNCTION longhaul.bin(value double precision) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT CASE WHEN value > 0 THEN least(greatest(floor(32 / ln(2::double precision) * ln(value)), -725), 11561)::smallint END
$$;

-- The middle of a bin, which is right within 1.1 %.
CREATE OR REPLACE FUNCTION longhaul.middle(bin integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 2 ^ ((bin + 0.5::double precision) / 32) $$;

-- Quantiles of a histogram, or of a sum of several: quantiles(sum(times), '{0.5,0.99}').
CREATE OR REPLACE FUNCTION longhaul.quantiles(histogram numeric, shares double precision[]) RETURNS double precision[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	base CONSTANT numeric := 1e12; -- of a digit that has a bin
	sent bytea := numeric_send(histogram); -- says where its digits of 4 are, as int16: count, weight of the first
	count integer := get_byte(sent, 0) * 256 + get_byte(sent, 1);
	weight integer := get_byte(sent, 2) * 256 + get_byte(sent, 3);
	first integer; -- bin that has flows, less 640
	bins integer;  -- from that one on
	total numeric;
	above bytea;   -- how many flows are above each bin, the last one's first
	few bytea;
	low integer; high integer; middle integer;
	share double precision;
	found double precision[] := '{}';
BEGIN
	IF histogram <= 0 THEN
		RETURN NULL;
	END IF;
	IF weight > 32767 THEN
		weight := weight - 65536;
	END IF;
	first := floor((weight - count + 1) / 3.0);
	bins := floor(weight / 3.0) - first + 1;
	histogram := trunc(histogram * ('1e' || -12 * first)::numeric); -- without zeros after the point
	-- 1 / (base - 1) is the sum of base^-1, base^-2 and so on: so each digit of the quotient is the sum
	-- of those above it, and the remainder that of all.
	total := histogram % (base - 1);
	above := convert_to(lpad(div(histogram, base - 1)::text, 12 * bins, '0'), 'UTF8');
	FOREACH share IN ARRAY shares LOOP
		few := convert_to(lpad((total - greatest(ceil(share::numeric * total), 1))::text, 12, '0'), 'UTF8');
		low := 0;
		high := bins - 1;
		WHILE low < high LOOP
			middle := (low + high) / 2;
			IF substr(above, 12 * (bins - 1 - middle) + 1, 12) <= few THEN
				high := middle;
			ELSE
				low := middle + 1;
			END IF;
		END LOOP;
		found := found || longhaul.middle(640 + first + low);
	END LOOP;
	RETURN found;
END $$;

-- Who moved how much to whom among the flows that ended from since to before until (NULL: no bound),
-- each counted where its client is, the most bytes first. Whole days (UTC) come from the sums, the rest
-- from the rows. Quantiles are of flows that moved data, right within 1.1 %, and with most only of the
-- first lines. to_site is empty where no pair carried the flow.
CREATE OR REPLACE FUNCTION longhaul.matrix(since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, most integer DEFAULT NULL)
RETURNS TABLE (from_site text, to_site text, flows bigint, transfers bigint, bytes_up bigint, bytes_down bigint,
	retransmitted_share double precision, goodput_median_bps double precision, goodput_p99_bps double precision,
	time_median_s double precision, time_p99_s double precision)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET "TimeZone" = 'UTC' SET work_mem = '64MB' AS $$
DECLARE
	since_at timestamptz := coalesce(since, '-infinity');
	until_at timestamptz := CASE WHEN until < now() THEN until ELSE 'infinity' END;
	first_day timestamptz := CASE WHEN isfinite(since_at) THEN date_trunc('day', since_at + interval '1 day' - interval '1 microsecond') ELSE since_at END;
	end_day timestamptz := CASE WHEN isfinite(until_at) THEN date_trunc('day', until_at) ELSE until_at END;
BEGIN
	IF first_day > end_day THEN -- all within a day
		first_day := until_at;
		end_day := until_at;
	END IF;
	-- As text, because only so the plan is for these times, and several processes may share the work.
	RETURN QUERY EXECUTE $matrix$
	WITH parts AS (
		SELECT relay_site, site, flows, transfers, up, down, sent, again, goodputs, times FROM (
			SELECT line, sum(flows) AS flows, sum(transfers) AS transfers, sum(bytes_up) AS up, sum(bytes_down) AS down,
				sum(bytes_sent) AS sent, sum(bytes_retransmitted) AS again, sum(goodputs) AS goodputs, sum(times) AS times
			FROM longhaul.days WHERE day >= $2::date AND day < $3::date GROUP BY line) AS l JOIN longhaul.lines USING (line) WHERE near
		UNION ALL
		SELECT relay_site, coalesce(site, peer, ''), count(*), count(*) FILTER (WHERE moved), sum(bytes_up), sum(bytes_down),
			sum(coalesce(client_bytes_sent, 0) + coalesce(target_bytes_sent, 0)),
			sum(CASE WHEN client_bytes_sent IS NOT NULL THEN coalesce(client_bytes_retransmitted, 0) ELSE 0 END
				+ CASE WHEN target_bytes_sent IS NOT NULL THEN coalesce(target_bytes_retransmitted, 0) ELSE 0 END),
			coalesce(sum(longhaul.histogram(longhaul.bin((bytes_up + bytes_down) * 8e6::double precision / elapsed_us), 1)) FILTER (WHERE moved), 0),
			coalesce(sum(longhaul.histogram(longhaul.bin(elapsed_us / 1e6::double precision), 1)) FILTER (WHERE moved), 0)
		FROM (SELECT *, bytes_up + bytes_down > 0 AND elapsed_us > 0 AS moved FROM longhaul.flows) AS f
		WHERE (ended >= $1 AND ended < $2 OR ended >= $3 AND ended < $4) AND client_side IS DISTINCT FROM 'wan' GROUP BY 1, 2
	), sums AS (
		SELECT relay_site, site, sum(flows)::bigint AS flows, sum(transfers)::bigint AS transfers, sum(up)::bigint AS up, sum(down)::bigint AS down,
			sum(sent) AS sent, sum(again) AS again, sum(goodputs) AS goodputs, sum(times) AS times,
			row_number() OVER (ORDER BY sum(up + down) DESC, relay_site, site) AS place
		FROM parts GROUP BY relay_site, site
	), quantiles AS MATERIALIZED (
		SELECT place, longhaul.quantiles(goodputs, '{0.5,0.99}') AS g, longhaul.quantiles(times, '{0.5,0.99}') AS t
		FROM sums WHERE $5 IS NULL OR place <= $5
	)
	SELECT relay_site, site, flows, transfers, up, down, again / nullif(sent, 0)::double precision, g[1], g[2], t[1], t[2]
	FROM sums LEFT JOIN quantiles USING (place) ORDER BY place$matrix$ USING since_at, first_day, end_day, until_at, most;
END $$;

GRANT EXECUTE ON FUNCTION longhaul.histogram(integer, bigint), longhaul.bin(double precision), longhaul.middle(integer),
	longhaul.quantiles(numeric, double precision[]), longhaul.matrix(timestamptz, timestamptz, integer) TO PUBLIC;
