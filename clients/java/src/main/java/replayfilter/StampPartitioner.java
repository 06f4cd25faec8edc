package replayfilter;

import java.util.Map;
import org.apache.kafka.clients.producer.Partitioner;
import org.apache.kafka.common.Cluster;

/**
 * Kafka's partitioner for records whose key is a stamp: {@code partitioner.class=replayfilter.StampPartitioner}.
 *
 * <p>It writes to <em>source partition % partitions</em>. Kafka shows a partitioner no headers, so records with the
 * stamp in a header need their partition given: {@link Stamp#partitionIn}.
 */
public final class StampPartitioner implements Partitioner {
    /** @throws IllegalArgumentException if the key is not a stamp */
    @Override
    public int partition(
            String topic, Object key, byte[] keyBytes, Object value, byte[] valueBytes, Cluster cluster) {
        Stamp stamp = Stamp.fromBytes(keyBytes).orElseThrow(() -> new IllegalArgumentException(
                "topic '" + topic + "': the key of a record is not a stamp, it has "
                        + (keyBytes == null ? "no" : keyBytes.length) + " bytes instead of " + Stamp.BYTES
                        + "; use the bytes of a Stamp as the key, or another partitioner for this topic"));
        return stamp.partitionIn(cluster.partitionsForTopic(topic).size());
    }

    @Override
    public void configure(Map<String, ?> settings) {}

    @Override
    public void close() {}
}
