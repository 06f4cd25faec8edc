package replayfilter;

import com.dynatrace.hash4j.hashing.Hashing;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.InterruptException;

/** Pids: one number for each job and the topic that it reads, the same as those of the Python library. */
public final class ProducerId {
    private ProducerId() {}

    /**
     * The pid of {@code job} for records that it makes from {@code topic}: a hash of cluster id, topic id and job
     * name. A topic that is deleted and created again has another id, so its new records are not replays.
     *
     * @throws KafkaException if no broker answers, or there is no such topic
     */
    public static long forTopic(Admin admin, String topic, String job) {
        try {
            String cluster = admin.describeCluster().clusterId().get();
            String id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId().toString();
            return of(cluster, id, job);
        } catch (ExecutionException error) {
            throw new KafkaException(
                    "the id of topic '" + topic + "' can't be read: " + error.getCause().getMessage()
                            + "; correct the topic's name and bootstrap.servers",
                    error.getCause());
        } catch (InterruptedException error) {
            throw new InterruptException(error);
        }
    }

    /**
     * The pid of a list of names. By convention they are the id of the cluster, the id of the source topic and the
     * name of the job. A job that writes to several topics which one reader reads adds the destination.
     *
     * @throws IllegalArgumentException for no names
     */
    public static long of(String... parts) {
        if (parts.length == 0) {
            throw new IllegalArgumentException("a pid needs at least one part: cluster id, topic id and job name");
        }
        ByteArrayOutputStream hashed = new ByteArrayOutputStream();
        for (String part : parts) {
            byte[] text = part.getBytes(StandardCharsets.UTF_8);
            // The length keeps ("a", "bc") and ("ab", "c") apart.
            hashed.writeBytes(ByteBuffer.allocate(Integer.BYTES).putInt(text.length).array());
            hashed.writeBytes(text);
        }
        return Hashing.xxh3_64().hashBytesToLong(hashed.toByteArray());
    }
}
