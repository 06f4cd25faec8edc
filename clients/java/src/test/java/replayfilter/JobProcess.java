package replayfilter;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import replayfilter.StampingProducer.StampIn;

/**
 * An at-least-once job for tests that kill it, the same as tests/support/job_process.py: it reads a topic, writes
 * another with stamps, and saves its offsets after every 400 records, once these are delivered.
 *
 * <p>{@code JobProcess BOOTSTRAP SOURCE TARGET NAME key|header CHECKPOINT}
 */
public final class JobProcess {
    private static final int BATCH = 400;

    private JobProcess() {}

    public static void main(String[] arguments) throws Exception {
        String source = arguments[1];
        StampIn stampIn = StampIn.valueOf(arguments[4].toUpperCase(Locale.ROOT));
        Path checkpoint = Path.of(arguments[5]);
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (Admin admin = Admin.create(settings);
                var consumer = new KafkaConsumer<>(settings, bytes, bytes);
                var producer = new StampingProducer<>(
                        settings,
                        arguments[2],
                        ProducerId.forTopic(admin, source, arguments[3]),
                        stampIn,
                        new ByteArraySerializer())) {
            Properties kept = load(checkpoint);
            List<TopicPartition> partitions = consumer.partitionsFor(source).stream()
                    .map(found -> new TopicPartition(source, found.partition()))
                    .collect(Collectors.toList());
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            consumer.assign(partitions);
            partitions.forEach(each -> consumer.seek(
                    each, Long.parseLong(kept.getProperty(String.valueOf(each.partition()), "0"))));
            int written = 0;
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    byte[] key = stampIn == StampIn.HEADER ? record.key() : null;
                    producer.send(record.partition(), record.offset(), key, record.value(), null);
                    kept.setProperty(String.valueOf(record.partition()), String.valueOf(record.offset() + 1));
                    if (++written % BATCH == 0) {
                        Thread.sleep(50); // slow enough to be killed within a batch
                        producer.flush();
                        save(checkpoint, kept);
                    }
                }
            }
            producer.flush();
            save(checkpoint, kept);
        }
    }

    private static Properties load(Path path) throws IOException {
        Properties kept = new Properties();
        if (Files.exists(path)) {
            try (InputStream stream = Files.newInputStream(path)) {
                kept.load(stream);
            }
        }
        return kept;
    }

    private static void save(Path path, Properties kept) throws IOException {
        Path next = path.resolveSibling(path.getFileName() + ".new");
        try (OutputStream stream = Files.newOutputStream(next)) {
            kept.store(stream, null);
        }
        Files.move(next, path, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }
}
