package replayfilter;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.producer.MockProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RoundRobinPartitioner;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import replayfilter.StampingProducer.StampIn;

/** Rules that need no broker. */
class StampingProducerTest {
    private final MockProducer<byte[], String> mock = new MockProducer<>(
            cluster(3), true, new RoundRobinPartitioner(), new ByteArraySerializer(), new StringSerializer());

    private static Cluster cluster(int partitions) {
        List<PartitionInfo> found = new ArrayList<>();
        for (int number = 0; number < partitions; number++) {
            found.add(new PartitionInfo("orders", number, Node.noNode(), new Node[0], new Node[0]));
        }
        return new Cluster("cluster", List.of(), found, Set.of(), Set.of());
    }

    private StampingProducer<String> producer(StampIn stampIn) {
        return new StampingProducer<>(mock, "orders", 7, stampIn);
    }

    @Test
    void theStampIsTheKeyAndChoosesThePartition() {
        try (StampingProducer<String> producer = producer(StampIn.KEY)) {
            producer.send(5, 40, "value");
        }
        ProducerRecord<byte[], String> record = mock.history().get(0);
        assertEquals(new Stamp(7, 5, 40), Stamp.fromBytes(record.key()).orElseThrow());
        assertEquals(2, record.partition());
    }

    @Test
    void theStampIsInAHeaderBesideTheKey() {
        try (StampingProducer<String> producer = producer(StampIn.HEADER)) {
            producer.send(5, 40, new byte[] {1}, "value", null);
        }
        ProducerRecord<byte[], String> record = mock.history().get(0);
        byte[] header = record.headers().lastHeader("rf-stamp").value();
        assertEquals(new Stamp(7, 5, 40), Stamp.fromBytes(header).orElseThrow());
        assertEquals(1, record.key().length);
        assertEquals(2, record.partition());
    }

    @Test
    void offsetsAscendUnlessTheJobGoesBack() {
        try (StampingProducer<String> producer = producer(StampIn.KEY)) {
            producer.send(0, 3, "value");
            producer.send(1, 1, "another partition");
            assertThrows(StampException.class, () -> producer.send(0, 3, "again"));
            assertThrows(StampException.class, () -> producer.send(0, 2, "back"));
            producer.beginReplay();
            producer.send(0, 2, "announced");
        }
        assertEquals(3, mock.history().size());
    }

    @Test
    void aKeyOfItsOwnNeedsTheHeader() {
        try (StampingProducer<String> producer = producer(StampIn.KEY)) {
            assertThrows(StampException.class, () -> producer.send(0, 0, new byte[1], "value", null));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "enable.idempotence, false", "acks, 1", "delivery.timeout.ms, 120000", "transactional.id, mine",
        "partitioner.class, org.apache.kafka.clients.producer.RoundRobinPartitioner",
    })
    void settingsThatLoseOrReorderRecordsAreRefused(String name, String value) {
        StampException error =
                assertThrows(StampException.class, () -> StampingSettings.of(Map.of(name, value)));
        assertTrue(error.getMessage().startsWith("setting " + name + " = " + value), error.getMessage());
    }

    @Test
    void theirDefaultsAreAllowed() {
        Map<String, Object> defaults = StampingSettings.of(Map.of());
        assertEquals(defaults, StampingSettings.of(defaults));
    }

    @Test
    void thePartitionerReadsTheKey() {
        try (StampPartitioner partitioner = new StampPartitioner()) {
            byte[] key = new Stamp(7, 5, 40).toBytes();
            assertEquals(2, partitioner.partition("orders", key, key, null, null, cluster(3)));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> partitioner.partition("orders", null, null, null, null, cluster(3)));
        }
    }
}
