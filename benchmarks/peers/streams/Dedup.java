import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Deduplication as a Kafka Streams user writes it: a window store of the ids that were seen.
 *
 * <p>The only argument is a file of Streams settings, with five of our own: input, output, period.ms,
 * repartition (true or false) and partitions. A repeated event has the same time, so one look-up by id and
 * time finds it; that is faster than the usual range of times.
 */
public final class Dedup {
  private static final JsonFactory JSON = new JsonFactory();
  private static final String STORE = "seen";

  private record Event(String id, long ts) {}

  public static void main(String[] arguments) throws IOException {
    Properties settings = new Properties();
    try (FileInputStream file = new FileInputStream(arguments[0])) {
      settings.load(file);
    }
    Duration period = Duration.ofMillis(Long.parseLong(settings.getProperty("period.ms")));
    StreamsBuilder builder = new StreamsBuilder();
    builder.addStateStore(
        Stores.windowStoreBuilder(
            Stores.persistentWindowStore(STORE, period, period, false),
            Serdes.String(),
            Serdes.ByteArray()));
    KStream<byte[], byte[]> input =
        builder.stream(
            settings.getProperty("input"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()));
    String output = settings.getProperty("output");
    if (Boolean.parseBoolean(settings.getProperty("repartition"))) {
      int partitions = Integer.parseInt(settings.getProperty("partitions"));
      input
          .selectKey((key, value) -> event(value).id())
          .repartition(
              Repartitioned.with(Serdes.String(), Serdes.ByteArray())
                  .withNumberOfPartitions(partitions))
          .processValues(FirstOnly<String>::new, STORE)
          .to(output, Produced.with(Serdes.String(), Serdes.ByteArray()));
    } else {
      input
          .processValues(FirstOnly<byte[]>::new, STORE)
          .to(output, Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
    }
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
    streams.start();
  }

  private static Event event(byte[] value) {
    String id = null;
    long ts = 0;
    try (JsonParser parser = JSON.createParser(value)) {
      while (parser.nextToken() != null) {
        if (parser.currentToken() == JsonToken.FIELD_NAME) {
          switch (parser.currentName()) {
            case "event_id" -> id = parser.nextTextValue();
            case "ts" -> ts = parser.nextLongValue(0);
            default -> parser.nextToken();
          }
        }
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return new Event(id, ts);
  }

  /** Forwards the first record of each event. */
  private static final class FirstOnly<K> extends ContextualFixedKeyProcessor<K, byte[], byte[]> {
    private static final byte[] SEEN = {};
    private WindowStore<String, byte[]> seen;

    @Override
    public void init(FixedKeyProcessorContext<K, byte[]> context) {
      super.init(context);
      seen = context.getStateStore(STORE);
    }

    @Override
    public void process(FixedKeyRecord<K, byte[]> record) {
      Event event = event(record.value());
      if (seen.fetch(event.id(), event.ts()) == null) {
        seen.put(event.id(), SEEN, event.ts());
        context().forward(record);
      }
    }
  }
}
