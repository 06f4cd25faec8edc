package replayfilter;

import java.nio.ByteBuffer;
import java.util.Objects;
import java.util.Optional;
import org.apache.kafka.common.header.Headers;

/**
 * Which source record a record was made from: 20 bytes, in its key or in the header {@link #HEADER}.
 *
 * <p>The layout is that of docs/reference/stamp.md: pid int64, source partition int32, source offset int64, all
 * big-endian.
 */
public final class Stamp {
    /** The length of a stamp. A key or header of another length is not a stamp. */
    public static final int BYTES = Long.BYTES + Integer.BYTES + Long.BYTES;

    /** The header that has the stamp where records keep their own key. */
    public static final String HEADER = "rf-stamp";

    private final long pid;
    private final int partition;
    private final long offset;

    public Stamp(long pid, int partition, long offset) {
        this.pid = pid;
        this.partition = partition;
        this.offset = offset;
    }

    /** The stamp in {@code data}; empty if it is null or not exactly 20 bytes. */
    public static Optional<Stamp> fromBytes(byte[] data) {
        if (data == null || data.length != BYTES) {
            return Optional.empty();
        }
        ByteBuffer buffer = ByteBuffer.wrap(data);
        return Optional.of(new Stamp(buffer.getLong(), buffer.getInt(), buffer.getLong()));
    }

    /** The job and its source topic: see {@link ProducerId}. */
    public long pid() {
        return pid;
    }

    /** The source partition. */
    public int partition() {
        return partition;
    }

    /** The source offset. */
    public long offset() {
        return offset;
    }

    /** The 20 bytes. */
    public byte[] toBytes() {
        return ByteBuffer.allocate(BYTES).putLong(pid).putInt(partition).putLong(offset).array();
    }

    /** Put the stamp into the header, instead of any that is there. */
    public void addTo(Headers headers) {
        headers.remove(HEADER).add(HEADER, toBytes());
    }

    /**
     * The partition for the record in a topic with so many partitions. All records of a source go to one partition,
     * so they keep their order.
     */
    public int partitionIn(int partitions) {
        return Math.floorMod(partition, partitions);
    }

    @Override
    public boolean equals(Object other) {
        if (!(other instanceof Stamp)) {
            return false;
        }
        Stamp stamp = (Stamp) other;
        return pid == stamp.pid && partition == stamp.partition && offset == stamp.offset;
    }

    @Override
    public int hashCode() {
        return Objects.hash(pid, partition, offset);
    }

    @Override
    public String toString() {
        return "Stamp(pid=" + pid + ", partition=" + partition + ", offset=" + offset + ")";
    }
}
