package replayfilter;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A producer that stamps: the upstream job's half of replay filtering.
 *
 * <pre>{@code
 * long pid = ProducerId.forTopic(admin, "orders.raw", "cleaner");
 * try (var producer = new StampingProducer<>(settings, "orders", pid, StampIn.KEY, new StringSerializer())) {
 *     producer.send(source.partition(), source.offset(), value);
 *     producer.flush(); // only now may the job keep its checkpoint
 * }
 * }</pre>
 *
 * <p>A reader treats every record at or below the highest offset of its source as a replay. So this producer never
 * writes a record after one that could not be written: the first failure ends it, and every later call throws
 * {@link StampException}. Then start the job again from its last checkpoint, with a new producer.
 */
public final class StampingProducer<V> implements AutoCloseable {
    /** Where the stamp goes. */
    public enum StampIn {
        /** The stamp is the record's key. */
        KEY,
        /** The stamp is in the header {@link Stamp#HEADER}; records have their own keys. */
        HEADER
    }

    private static final Logger LOG = LoggerFactory.getLogger(StampingProducer.class);

    private final Producer<byte[], V> producer;
    private final String topic;
    private final long pid;
    private final StampIn stampIn;
    private final Map<Integer, Long> last = new HashMap<>(); // source partition -> last offset
    private volatile Exception failure;
    private int partitions;

    /**
     * A producer for {@code topic} with Kafka's own {@code settings}.
     *
     * @throws StampException for a setting that could reorder or lose records
     */
    public StampingProducer(
            Map<String, ?> settings, String topic, long pid, StampIn stampIn, Serializer<V> values) {
        this(new KafkaProducer<>(StampingSettings.of(settings), new ByteArraySerializer(), values), topic, pid, stampIn);
    }

    StampingProducer(Producer<byte[], V> producer, String topic, long pid, StampIn stampIn) {
        this.producer = producer;
        this.topic = topic;
        this.pid = pid;
        this.stampIn = stampIn;
        this.partitions = producer.partitionsFor(topic).size();
    }

    /** Write one record without a key of its own: see {@link #send(int, long, byte[], V, Iterable)}. */
    public Future<RecordMetadata> send(int sourcePartition, long sourceOffset, V value) {
        return send(sourcePartition, sourceOffset, null, value, null);
    }

    /**
     * Write one record with the stamp of its source record; returns before it is delivered.
     *
     * @param key null if the stamp is the key
     * @param headers further headers, or null
     * @throws StampException if offsets don't ascend within the source partition (see {@link #beginReplay}), or once
     *     any record has failed
     */
    public synchronized Future<RecordMetadata> send(
            int sourcePartition, long sourceOffset, byte[] key, V value, Iterable<Header> headers) {
        check();
        checkAscends(sourcePartition, sourceOffset);
        if (stampIn == StampIn.KEY && key != null) {
            throw new StampException("the stamp is the key here: use StampIn.HEADER for records with their own key");
        }
        followPartitions();
        Stamp stamp = new Stamp(pid, sourcePartition, sourceOffset);
        byte[] written = stampIn == StampIn.KEY ? stamp.toBytes() : key;
        ProducerRecord<byte[], V> record =
                new ProducerRecord<>(topic, stamp.partitionIn(partitions), written, value, headers);
        if (stampIn == StampIn.HEADER) {
            stamp.addTo(record.headers());
        }
        last.put(sourcePartition, sourceOffset);
        try {
            return producer.send(record, (metadata, error) -> {
                if (error != null) {
                    fail(error);
                }
            });
        } catch (RuntimeException error) { // the callback isn't called for all of them, such as a serializer's
            fail(error);
            throw failed();
        }
    }

    /**
     * Announce that the offsets of all source partitions go back now: for a job that goes back to its checkpoint and
     * keeps its producer. A new producer doesn't need this call.
     */
    public synchronized void beginReplay() {
        last.clear();
    }

    /**
     * Wait until every record is delivered; only after that may a job write its checkpoint. It waits for the broker
     * without limit, since no record times out.
     *
     * @throws StampException if any record has failed
     */
    public void flush() {
        check();
        producer.flush();
        check();
    }

    /**
     * Wait until every record is delivered, and end.
     *
     * @throws StampException if any record has failed
     */
    @Override
    public void close() {
        if (failure == null) {
            producer.flush();
        }
        producer.close(failure == null ? Duration.ofMillis(Long.MAX_VALUE) : Duration.ZERO);
        check();
    }

    /** End at once: a record that waits behind the failed one must not be written. */
    private void fail(Exception error) {
        if (failure == null) {
            failure = error;
        }
        producer.close(Duration.ZERO);
    }

    private void check() {
        if (failure != null) {
            throw failed();
        }
    }

    private StampException failed() {
        return new StampException(
                "topic '" + topic + "': a record was not delivered: " + failure
                        + "; remove the cause and start the job again from its last checkpoint, with a new producer",
                failure);
    }

    private void checkAscends(int sourcePartition, long sourceOffset) {
        Long before = last.get(sourcePartition);
        if (before == null || sourceOffset > before) {
            return;
        }
        if (sourceOffset == before) {
            throw new StampException(
                    "source partition " + sourcePartition + ": offset " + sourceOffset + " was written already, and a"
                            + " reader would drop the second record as a replay: write one record for each source"
                            + " record");
        }
        throw new StampException(
                "source partition " + sourcePartition + ": offset " + sourceOffset + " after " + before
                        + " goes back; write in source order, or call beginReplay() if the job goes back to its"
                        + " checkpoint");
    }

    private void followPartitions() {
        int found = producer.partitionsFor(topic).size(); // what the client knows: no request
        if (found == partitions) {
            return;
        }
        flush();
        LOG.warn(
                "topic '{}' has {} partitions now, it had {}: from now on a source's records go to another partition."
                        + " A reader that is behind may read later ones first and drop earlier ones as replays: let"
                        + " readers reach the end before the job continues",
                topic, found, partitions);
        partitions = found;
    }
}
