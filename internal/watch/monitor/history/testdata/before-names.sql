PRAGMA application_id = 1818781804;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE events (
	id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL,
	kind TEXT NOT NULL, tunnel TEXT NOT NULL, subject TEXT NOT NULL,
	from_state TEXT NOT NULL, to_state TEXT NOT NULL, reason TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1795840109357,'relay','','','stopped','serving','longhaul (devel) go1.26.8 linux/amd64, process 2477');
CREATE TABLE hours (
	at INTEGER NOT NULL, tunnel INTEGER NOT NULL,
	bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, ended BLOB,
	PRIMARY KEY (at, tunnel)
) WITHOUT ROWID;
INSERT INTO "hours" VALUES(1795838400,1,21010,21000,X'010892A40188A4019AC80200080000406C0586B83FB610E43937E3743D8C0101070121011101080101010B012501080040F23A3FC2A541C97BAE458A4F0C4D8504013B0138011E0116010801040139010002030206080702');
CREATE TABLE minutes (
	at INTEGER NOT NULL, tunnel INTEGER NOT NULL,
	bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL,
	PRIMARY KEY (at, tunnel)
) WITHOUT ROWID;
INSERT INTO "minutes" VALUES(1795840080,1,21010,21000);
CREATE TABLE records (
	id INTEGER PRIMARY KEY, -- in the order of writing
	end_ms INTEGER NOT NULL, elapsed_us INTEGER NOT NULL,
	tunnel_id INTEGER, cause_id INTEGER, reason_id INTEGER, ended_by_id INTEGER,
	bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL,
	client_bytes_sent INTEGER, client_bytes_retransmitted INTEGER,
	target_bytes_sent INTEGER, target_bytes_retransmitted INTEGER,
	start_ms INTEGER NOT NULL, flow INTEGER, hop_id INTEGER,
	client TEXT, client_port INTEGER, target TEXT, target_port INTEGER,
	error TEXT, cause_leg_id INTEGER, cause_permille INTEGER,
	client_side_id INTEGER, client_congestion_control_id INTEGER,
	client_rtt_us INTEGER, client_min_rtt_us INTEGER, client_retransmits INTEGER,
	target_side_id INTEGER, target_congestion_control_id INTEGER,
	target_rtt_us INTEGER, target_min_rtt_us INTEGER, target_retransmits INTEGER,
	goodput BLOB
, resumes INTEGER, outage_us INTEGER);
INSERT INTO "records" VALUES(1,1795840109447,5316,1,NULL,2,3,1000,1000,1000,0,1000,0,1795840109442,1,4,'127.0.0.1',60430,'127.0.0.1',42973,NULL,NULL,NULL,5,6,16,9,0,5,6,11,11,0,X'01C0843DA3B3B74901FF01FF',NULL,NULL);
INSERT INTO "records" VALUES(2,1795840109452,2444,1,NULL,2,3,2000,2000,2000,0,2000,0,1795840109450,2,4,'127.0.0.1',60432,'127.0.0.1',42973,NULL,NULL,NULL,5,6,11,8,0,5,6,6,6,0,X'01C0843D63BEC74A01FF01FF',NULL,NULL);
INSERT INTO "records" VALUES(3,1795840109515,59787,1,NULL,2,3,3000,3000,3000,0,3000,0,1795840109456,3,4,'127.0.0.1',60434,'127.0.0.1',42973,NULL,NULL,NULL,5,6,11,8,0,5,6,29,17,0,X'01C0843DCF01C44801FF01FF',NULL,NULL);
INSERT INTO "records" VALUES(4,1795840109516,435,1,NULL,2,3,4000,4000,4000,0,4000,0,1795840109516,4,4,'127.0.0.1',60448,'127.0.0.1',42973,NULL,NULL,NULL,5,6,9,8,0,5,6,6,6,0,X'01C0843D654D8C4C01FF01FF',NULL,NULL);
INSERT INTO "records" VALUES(5,1795840109526,7372,1,NULL,2,3,5000,5000,5000,0,5000,0,1795840109518,5,4,'127.0.0.1',60452,'127.0.0.1',42973,NULL,NULL,NULL,5,6,12,9,0,5,6,10,10,0,X'01C0843DC791A54A01FF01FF',NULL,NULL);
INSERT INTO "records" VALUES(6,1795840109536,12684,1,NULL,2,3,6000,6000,6000,0,6000,0,1795840109523,6,4,'127.0.0.1',60454,'127.0.0.1',42973,NULL,NULL,NULL,5,6,10,8,0,5,6,5,5,0,X'01C0843D0AF7664A01FF01FF',NULL,NULL);
INSERT INTO "records" VALUES(7,1795840109543,7164,1,NULL,7,8,5,0,0,0,5,0,1795840109536,7,4,'127.0.0.1',60458,'127.0.0.1',42973,'connection reset by peer',NULL,NULL,5,6,10,10,0,5,6,7,7,0,X'01C0843D9F79AE4501FF010001',NULL,NULL);
INSERT INTO "records" VALUES(8,1795840109544,593,1,NULL,7,8,5,0,0,0,5,0,1795840109544,8,4,'127.0.0.1',60468,'127.0.0.1',42973,'connection reset by peer',NULL,NULL,5,6,11,11,0,5,6,6,6,0,X'01C0843DD1B2834701FF010001',NULL,NULL);
CREATE TABLE segments (
	last INTEGER PRIMARY KEY,
	records INTEGER NOT NULL, min_end_ms INTEGER NOT NULL, max_end_ms INTEGER NOT NULL,
	max_elapsed_us INTEGER NOT NULL, max_bytes INTEGER NOT NULL, min_goodput_bps REAL NOT NULL, max_retransmitted REAL NOT NULL,
	digest BLOB NOT NULL
);
CREATE TABLE state (last_id INTEGER NOT NULL, writer INTEGER NOT NULL);
INSERT INTO "state" VALUES(8,0);
CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE);
INSERT INTO "words" VALUES(1,'main');
INSERT INTO "words" VALUES(2,'end');
INSERT INTO "words" VALUES(3,'both');
INSERT INTO "words" VALUES(4,'127.0.0.1:42973');
INSERT INTO "words" VALUES(5,'lan');
INSERT INTO "words" VALUES(6,'cubic');
INSERT INTO "words" VALUES(7,'target-reset');
INSERT INTO "words" VALUES(8,'target');
CREATE INDEX records_resumed ON records (end_ms) WHERE outage_us IS NOT NULL;
CREATE VIEW flows AS SELECT
	id,
	strftime('%Y-%m-%d %H:%M:%f', start_ms / 1000.0, 'unixepoch') AS started_utc,
	strftime('%Y-%m-%d %H:%M:%f', end_ms / 1000.0, 'unixepoch') AS ended_utc,
	(SELECT word FROM words WHERE words.id = tunnel_id) AS tunnel,
	client, client_port, target, target_port,
	(SELECT word FROM words WHERE words.id = hop_id) AS hop,
	elapsed_us / 1e6 AS elapsed_s, bytes_up, bytes_down,
	(bytes_up + bytes_down) * 8e6 / nullif(elapsed_us, 0) AS goodput_bps,
	(SELECT word FROM words WHERE words.id = cause_id) AS cause,
	(SELECT word FROM words WHERE words.id = cause_leg_id) AS cause_leg,
	cause_permille / 1000.0 AS cause_share,
	(SELECT word FROM words WHERE words.id = ended_by_id) AS ended_by,
	(SELECT word FROM words WHERE words.id = reason_id) AS reason, error,
	(SELECT word FROM words WHERE words.id = client_side_id) AS client_side,
	(SELECT word FROM words WHERE words.id = client_congestion_control_id) AS client_congestion_control,
	client_rtt_us, client_min_rtt_us, client_bytes_sent, client_bytes_retransmitted, client_retransmits,
	(SELECT word FROM words WHERE words.id = target_side_id) AS target_side,
	(SELECT word FROM words WHERE words.id = target_congestion_control_id) AS target_congestion_control,
	target_rtt_us, target_min_rtt_us, target_bytes_sent, target_bytes_retransmitted, target_retransmits,
	start_ms, end_ms, elapsed_us, flow,
	resumes, outage_us / 1e6 AS outage_s
FROM records;
COMMIT;
